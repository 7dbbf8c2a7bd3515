#include "server/rpc/status.h"

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runahead/v1/status.pb.h"
#include "tests/server/rpc/loopback.h"

namespace runahead {
namespace {

using ::testing::StartsWith;

// What a client sees when a handler ends with `status`.
absl::Status OverTheWire(const absl::Status& status) {
  testing::FakeInference service(
      [&](grpc::CallbackServerContext*, grpc::ServerUnaryReactor* reactor) { reactor->Finish(ToGrpcStatus(status)); });
  const auto server = testing::StartServer(service);
  return testing::CallListModels(MakeChannel(server->address()));
}

TEST(Status, EveryCodeAndItsMessageCrossTheWire) {
  EXPECT_TRUE(OverTheWire(absl::OkStatus()).ok());
  for (int code = 1; code <= 16; ++code) {
    const absl::Status sent(static_cast<absl::StatusCode>(code), "được: 你好 100%\n");
    EXPECT_EQ(OverTheWire(sent), sent) << sent;
  }
}

TEST(Status, RetryDelayCrossesTheWire) {
  for (const absl::Duration delay : {absl::ZeroDuration(), absl::Milliseconds(1500), absl::Hours(30)}) {
    const absl::Status sent = WithRetryAfter(absl::ResourceExhaustedError("256 requests wait already"), delay);
    EXPECT_EQ(RetryAfter(sent), delay);
    const absl::Status received = OverTheWire(sent);
    EXPECT_EQ(received, sent);
    EXPECT_EQ(RetryAfter(received), delay);
  }
  EXPECT_EQ(RetryAfter(OverTheWire(absl::UnavailableError("x"))), std::nullopt);
  EXPECT_EQ(RetryAfter(absl::OkStatus()), std::nullopt);
}

TEST(Status, TheBlamedFieldCrossesTheWireBesideTheDelay) {
  const absl::Status sent = InvalidField("sampling.top_p", "1.5 is out of range; allowed: above 0, at most 1");
  EXPECT_EQ(sent.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sent.message(), "sampling.top_p: 1.5 is out of range; allowed: above 0, at most 1");
  const absl::Status received = OverTheWire(WithRetryAfter(sent, absl::Seconds(1)));
  EXPECT_EQ(BlamedField(received), "sampling.top_p");
  EXPECT_EQ(RetryAfter(received), absl::Seconds(1));
  EXPECT_EQ(FieldError(absl::StatusCode::kNotFound, "model", "no 'x' here").code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(BlamedField(absl::InvalidArgumentError("x")), std::nullopt);
}

TEST(Status, DetailsAreWhatGoogleRpcDefines) {
  const grpc::Status status = ToGrpcStatus(WithRetryAfter(absl::UnavailableError("m"), absl::Seconds(2)));
  // google.rpc.Status{code=14, message="m", details={Any{type_url, RetryInfo{retry_delay={seconds=2}}}}}, by hand.
  const std::string url = "type.googleapis.com/google.rpc.RetryInfo";
  const std::string any =
      absl::StrCat("\x0a", std::string(1, static_cast<char>(url.size())), url, "\x12\x04", "\x0a\x02\x08\x02");
  EXPECT_EQ(status.error_details(),
            absl::StrCat("\x08\x0e\x12\x01m\x1a", std::string(1, static_cast<char>(any.size())), any));
}

TEST(Status, LongMessagesAreCutAtAWholeCharacterAndStillArrive) {
  std::string text = "x";
  for (int i = 0; i < 20'000; ++i) text += "é";  // 3 bytes a byte when percent-encoded: the worst case
  const absl::Status received = OverTheWire(WithRetryAfter(InvalidField("prompt", text), absl::Seconds(1)));
  EXPECT_EQ(received.code(), absl::StatusCode::kInvalidArgument) << received;
  EXPECT_THAT(std::string(received.message()), StartsWith("prompt: xé"));
  EXPECT_EQ(received.message().size(), kMaxStatusMessageBytes - 1);  // the last é would end one byte too late
  EXPECT_EQ(RetryAfter(received), absl::Seconds(1));
}

TEST(Status, DetailsArriveBesideAMessageThatIsNoUtf8) {
  const absl::Status sent = WithRetryAfter(InvalidField("model", "there is no '\xff'"), absl::Seconds(1));
  const absl::Status received = OverTheWire(sent);
  EXPECT_EQ(received.message(), "model: there is no '\\xff'");
  EXPECT_EQ(BlamedField(received), "model");
  EXPECT_EQ(RetryAfter(received), absl::Seconds(1));
}

TEST(Status, DetailsOfSomebodyElseDoNoHarm) {
  const absl::Status garbage = FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "m", "\xff\xff garbage"));
  EXPECT_EQ(garbage, absl::AbortedError("m"));

  v1::RetryInfo negative;
  negative.mutable_retry_delay()->set_seconds(-5);
  v1::RpcStatus details;
  details.add_details()->set_type_url("type.googleapis.com/google.rpc.RetryInfo");
  details.mutable_details(0)->set_value(negative.SerializeAsString());
  details.add_details()->set_type_url("type.googleapis.com/google.rpc.BadRequest");
  details.mutable_details(1)->set_value("\xff");
  const absl::Status odd = FromGrpcStatus(grpc::Status(grpc::StatusCode::ABORTED, "m", details.SerializeAsString()));
  EXPECT_EQ(RetryAfter(odd), std::nullopt);
  EXPECT_EQ(BlamedField(odd), std::nullopt);
}

}  // namespace
}  // namespace runahead
