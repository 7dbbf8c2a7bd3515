#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/mutex.h"
#include "worker/handoff/message_handoff.h"
#include "worker/handoff/message_prefix.h"
#include "worker/handoff/slice.h"

namespace runahead {
namespace {

absl::Status FailedLoad(const Slice& rows, const absl::Status& answer) {
  const std::string what = absl::StrCat("KV before the chain, ", Describe(rows));
  switch (answer.code()) {
    case absl::StatusCode::kNotFound:
      return absl::NotFoundError(absl::StrCat(what, ": the decode worker has no such lease (any more)"));
    case absl::StatusCode::kOutOfRange:
      return absl::OutOfRangeError(absl::StrCat(what, ": the lease did not begin with these"));
    case absl::StatusCode::kFailedPrecondition:
      return absl::FailedPreconditionError(absl::StrCat(what, ": is asked for in ", std::string(RowFormName(rows.form)),
                                                        ", and the decode worker keeps another form: both must have "
                                                        "the same kv_dtype"));
    case absl::StatusCode::kDataLoss:
      return absl::DataLossError(absl::StrCat(what, ": came damaged ", kTransferAttempts, " times"));
    case absl::StatusCode::kCancelled:
      return absl::UnavailableError(absl::StrCat(what, ": the decode worker lends nothing now"));
    case absl::StatusCode::kResourceExhausted:
      return absl::UnavailableError(
          absl::StrCat(what, ": the decode worker has no memory to bring it out of its device"));
    default:
      return absl::UnavailableError(absl::StrCat(what, ": ", answer.message()));
  }
}

// What callbacks share with the loader. Events fire without the lock.
class LoaderState : public std::enable_shared_from_this<LoaderState> {
 public:
  LoaderState(MessageEngine& engine, PrefixLoaderOptions options) : engine_(engine), options_(std::move(options)) {}

  Event Load(const PeerId& decode, const Slice& rows, BufferRef into) RUNAHEAD_EXCLUDES(mu_) {
    const EventSource source;
    uint64_t number = 0;
    absl::Status refused;
    {
      MutexLock lock(mu_);
      if (stopped_) {
        refused = absl::UnavailableError("the links have stopped");
      } else if (FindPlace(rows.lease, rows.layer) != nullptr) {
        refused = absl::FailedPreconditionError(absl::StrCat(Describe(rows), " is being loaded already"));
      } else {
        number = next_++;
        places_.emplace(number, Place{decode, rows, std::move(into), source, rows.end - rows.begin, number});
      }
    }
    if (!refused.ok()) {
      source.Fire(refused);
    } else if (options_.lane == nullptr) {
      Ask(number);
    } else {
      // What has been asked for is taken, so memory for it is there before.
      options_.lane->Prepare([state = shared_from_this(), number](const absl::Status& memory) {
        if (memory.ok()) return state->Ask(number);
        state->End(number, absl::ResourceExhaustedError(absl::StrCat(
                               "this worker has no memory to bring a prefix into the device: ", memory.message())));
      });
    }
    return source.event();
  }

  void Drop(const LeaseId& lease) RUNAHEAD_EXCLUDES(mu_) {
    for (const uint64_t number : NumbersOf([&lease](const Slice& rows) { return rows.lease == lease; })) {
      End(number, absl::CancelledError("what a cancelled job had asked for of its prefix was dropped"));
    }
  }

  void OnRows(const Message& message) RUNAHEAD_EXCLUDES(mu_) {
    const std::optional<Slice> slice = UnpackSlice(message.header);
    if (!slice.has_value()) return;  // discarded with the message
    Inbound what;
    uint64_t number = 0;
    absl::StatusCode refused{};
    {
      MutexLock lock(mu_);
      Place* const place = FindPlace(slice->lease, slice->layer);
      if (place == nullptr || place->end.has_value()) return;  // nobody wants it any more: discarded, too
      refused = Misfit(*place, *slice, message);
      if (refused == absl::StatusCode::kOk) {
        place->missing -= slice->end - slice->begin;
        ++place->coming;
        what.into = {place->RowsOf(*slice)};
        number = place->number;
      }
    }
    if (refused != absl::StatusCode::kOk) return message.payload->Answer(refused);
    what.seed = SeedOf(*slice);
    what.lane = options_.lane;
    what.on_damaged = [state = shared_from_this()](int) {
      if (state->options_.on_damaged) state->options_.on_damaged();
    };
    message.payload->Accept(std::move(what), [state = shared_from_this(), number, tokens = slice->end - slice->begin,
                                              payload = message.payload](const absl::Status& status, const Came&) {
      state->Taken(number, tokens, status);
      if (status.ok()) payload->Answer(absl::StatusCode::kOk);  // else the sender knows, or is gone
    });
  }

  // Ends all; what is on the wire ends with its connection. Nobody loads any more.
  void Stop() RUNAHEAD_EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      stopped_ = true;
    }
    for (const uint64_t number : NumbersOf([](const Slice&) { return true; })) {
      End(number, absl::UnavailableError("the links have stopped"));
    }
    engine_.CloseAll(IsOfHandoff);
    MutexLock lock(mu_);
    while (!places_.empty() || firing_ > 0) ended_.Wait(mu_);
  }

 private:
  struct Place {
    PeerId decode;
    Slice rows;
    BufferRef into;
    EventSource source;
    int64_t missing = 0;  // tokens whose rows nobody has begun to send
    uint64_t number = 0;
    int coming = 0;                        // slices on their way into it
    std::optional<absl::Status> end = {};  // what it fires with when these are over

    BufferRef RowsOf(const Slice& slice) const {
      const size_t row = into.size / static_cast<size_t>(rows.end - rows.begin);
      return into.Slice((slice.begin - rows.begin) * row, (slice.end - slice.begin) * row);
    }
  };

  template <typename Meant>
  std::vector<uint64_t> NumbersOf(const Meant& meant) RUNAHEAD_EXCLUDES(mu_) {
    MutexLock lock(mu_);
    std::vector<uint64_t> numbers;
    for (const auto& [number, place] : places_) {
      if (meant(place.rows)) numbers.push_back(number);
    }
    return numbers;
  }

  // A few layers of a few jobs.
  Place* FindPlace(const LeaseId& lease, int32_t layer) RUNAHEAD_REQUIRES(mu_) {
    for (auto& [number, place] : places_) {
      if (place.rows.lease == lease && place.rows.layer == layer) return &place;
    }
    return nullptr;
  }

  static absl::StatusCode Misfit(const Place& place, const Slice& slice, const Message& message) {
    const Slice& rows = place.rows;
    if (slice.form != rows.form || slice.kind != rows.kind) return absl::StatusCode::kFailedPrecondition;
    const bool fits = message.from == place.decode.key() && slice.begin >= rows.begin && slice.begin < slice.end &&
                      slice.end <= rows.end && slice.end - slice.begin <= place.missing &&
                      message.payload->size() == place.RowsOf(slice).size;
    return fits ? absl::StatusCode::kOk : absl::StatusCode::kOutOfRange;
  }

  void Ask(uint64_t number) RUNAHEAD_EXCLUDES(mu_) {
    PeerId decode;
    PrefixAsk ask{{}, engine_.self().address};
    {
      MutexLock lock(mu_);
      const auto place = places_.find(number);
      if (place == places_.end()) return;  // it was dropped
      decode = place->second.decode;
      ask.rows = place->second.rows;
    }
    engine_.Send(decode, MessageKind::kPrefixAsk, PackAsk(ask), {},
                 [state = shared_from_this(), number, rows = ask.rows](const absl::Status& answer) {
                   state->End(number, answer.ok() ? answer : FailedLoad(rows, answer));
                 });
  }

  // Of a slice that was to come.
  void Taken(uint64_t number, int64_t tokens, const absl::Status& status) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Place> over;
    {
      MutexLock lock(mu_);
      Place& place = places_.at(number);  // it waits for what comes
      --place.coming;
      if (!status.ok()) place.missing += tokens;
      over = TakeIfOver(number);
    }
    if (over.has_value()) Fire(*over);
  }

  void End(uint64_t number, absl::Status why) RUNAHEAD_EXCLUDES(mu_) {
    std::optional<Place> over;
    {
      MutexLock lock(mu_);
      const auto place = places_.find(number);
      if (place == places_.end() || place->second.end.has_value()) return;
      place->second.end = std::move(why);
      over = TakeIfOver(number);
    }
    if (over.has_value()) Fire(*over);
  }

  std::optional<Place> TakeIfOver(uint64_t number) RUNAHEAD_REQUIRES(mu_) {
    const auto place = places_.find(number);
    if (!place->second.end.has_value() || place->second.coming > 0) return std::nullopt;
    Place over = std::move(place->second);
    places_.erase(place);
    ++firing_;
    return over;
  }

  void Fire(Place& place) RUNAHEAD_EXCLUDES(mu_) {
    place.into = {};  // before who waits goes on
    if (place.end->ok() && place.missing > 0) {
      place.end = absl::DataLossError(absl::StrCat("KV before the chain, ", Describe(place.rows),
                                                   ": the decode worker sent all but ", place.missing, " tokens"));
    }
    place.source.Fire(*place.end);
    MutexLock lock(mu_);
    --firing_;
    ended_.NotifyAll();
  }

  MessageEngine& engine_;
  const PrefixLoaderOptions options_;
  Mutex mu_;
  CondVar ended_;
  bool stopped_ RUNAHEAD_GUARDED_BY(mu_) = false;
  uint64_t next_ RUNAHEAD_GUARDED_BY(mu_) = 1;
  std::map<uint64_t, Place> places_ RUNAHEAD_GUARDED_BY(mu_);  // by number
  int firing_ RUNAHEAD_GUARDED_BY(mu_) = 0;                    // places that are over and being told of
};

class MessagePrefixLoader final : public PrefixLoader {
 public:
  MessagePrefixLoader(MessageEngine& engine, PrefixLoaderOptions options)
      : engine_(engine), state_(std::make_shared<LoaderState>(engine, std::move(options))) {
    engine_.SetHandler(MessageKind::kPrefixRows, [state = state_](const Message& message) { state->OnRows(message); });
  }
  ~MessagePrefixLoader() override {
    engine_.SetHandler(MessageKind::kPrefixRows, nullptr);
    state_->Stop();
  }
  Event Load(const PeerId& decode, const Slice& rows, BufferRef into) override {
    return state_->Load(decode, rows, std::move(into));
  }
  void Drop(const LeaseId& lease) override { state_->Drop(lease); }

 private:
  MessageEngine& engine_;
  const std::shared_ptr<LoaderState> state_;
};

}  // namespace

std::unique_ptr<PrefixLoader> MakeMessagePrefixLoader(MessageEngine& engine, PrefixLoaderOptions options) {
  return std::make_unique<MessagePrefixLoader>(engine, std::move(options));
}

}  // namespace runahead
