#include "worker/decode_role.h"

#include <utility>

#include "kernels/base/status_macros.h"
#include "server/base/logging.h"
#include "worker/service/proto_convert.h"

namespace runahead {
namespace {

// Of the control stream decode minds only Release: what it runs came by calls of its own, which break by themselves.
class DecodeControl : public ControlHandler {
 public:
  explicit DecodeControl(KvStore& store) : store_(store) {}
  void OnFormLine(const v1::FormLine&) override {}
  void OnStart(const v1::StartJob&) override {}
  void OnCancel(uint64_t) override {}
  void OnRelease(const v1::LeaseId& lease) override { store_.Release(LeaseFromProto(lease)); }
  void OnRouterGone() override {}

 private:
  KvStore& store_;
};

}  // namespace

DecodeRole::~DecodeRole() = default;

}  // namespace runahead
