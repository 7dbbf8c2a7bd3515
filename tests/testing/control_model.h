// The control stream between the router and one worker in a model of the protocol: connections break at any moment and
// lose what is on its way, and the stream is resumed. Numbers, what is kept, and who may resume are the product's
// (server/base/replay.h, worker/service/control_seat.h); there is neither gRPC nor a thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <optional>
#include <utility>

#include "absl/time/time.h"
#include "kernels/base/status_macros.h"
#include "server/base/replay.h"
#include "worker/service/control_seat.h"

namespace runahead::testing {

template <typename Order, typename Report>
class ControlModel {
 public:
  explicit ControlModel(uint64_t worker) : worker_(worker), seat_(worker, 0) {
    RUNAHEAD_CHECK(seat_.Ask({kRouter, worker_, 0}, absl::UnixEpoch()) == SeatAnswer::kTaken);
  }

  void Write(Order order) {
    if (open_) orders_on_way_.emplace_back(orders_.next(), order);
    orders_.Append(std::move(order));
  }
  void Tell(Report report) {
    if (open_) reports_on_way_.emplace_back(reports_.next(), report);
    reports_.Append(std::move(report));
  }

  // The next message of each way arrives: what the worker is to do, or what the router hears; nothing where none is on
  // its way, or where it has come before.
  std::optional<Order> OrderArrives() { return Arrive(orders_on_way_, has_orders_); }
  std::optional<Report> ReportArrives() { return Arrive(reports_on_way_, has_reports_); }
  // A ping and its pong, which pass nothing that is on its way.
  void Acknowledge() {
    EXPECT_TRUE(!orders_on_way_.empty() || orders_.Acknowledge(has_orders_.received()));
    EXPECT_TRUE(!reports_on_way_.empty() || reports_.Acknowledge(has_reports_.received()));
  }
  size_t on_way() const { return orders_on_way_.size() + reports_on_way_.size(); }

  bool open() const { return open_; }
  void Cut() {
    open_ = false;
    orders_on_way_.clear();
    reports_on_way_.clear();
    seat_.Broke(absl::UnixEpoch());
  }
  // With `stale`, all that was not acknowledged before the cut is sent again, though some of it had arrived.
  void Resume(bool stale) {
    ControlSeat asked_by_another = seat_;
    EXPECT_NE(asked_by_another.Ask({kRouter + 1, worker_, 0, true}, absl::UnixEpoch()), SeatAnswer::kResumed);
    EXPECT_EQ(seat_.Ask({kRouter, worker_, 0, true}, absl::UnixEpoch()), SeatAnswer::kResumed);
    open_ = true;
    SendAgain(orders_, has_orders_, stale, orders_on_way_);
    SendAgain(reports_, has_reports_, stale, reports_on_way_);
  }
  // The router gave the worker up, or the worker the router: nothing comes any more.
  void End() {
    EXPECT_TRUE(seat_.Overdue(absl::UnixEpoch() + kResumeGrace));
    seat_.EndEpoch();
    EXPECT_EQ(seat_.Ask({kRouter, worker_, 0, true}, absl::UnixEpoch()), SeatAnswer::kTooLate);
  }

 private:
  static constexpr uint64_t kRouter = 42;
  template <typename Message>
  using Way = std::deque<std::pair<uint64_t, Message>>;

  template <typename Message>
  static std::optional<Message> Arrive(Way<Message>& way, Inbox& inbox) {
    if (way.empty()) return std::nullopt;
    const auto [number, message] = std::move(way.front());
    way.pop_front();
    const InboxAnswer answer = inbox.Take(number);
    EXPECT_NE(answer, InboxAnswer::kGap);
    if (answer != InboxAnswer::kNext) return std::nullopt;
    return message;
  }
  template <typename Message>
  static void SendAgain(Outbox<Message>& outbox, const Inbox& inbox, bool stale, Way<Message>& way) {
    EXPECT_TRUE(stale || outbox.Acknowledge(inbox.received()));
    uint64_t number = outbox.next() - outbox.kept().size();
    for (const Message& message : outbox.kept()) way.emplace_back(number++, message);
  }

  const uint64_t worker_;
  ControlSeat seat_;
  bool open_ = true;
  Outbox<Order> orders_;     // the router's
  Outbox<Report> reports_;   // the worker's
  Inbox has_orders_;         // the worker
  Inbox has_reports_;        // the router
  Way<Order> orders_on_way_;
  Way<Report> reports_on_way_;
};

}  // namespace runahead::testing
