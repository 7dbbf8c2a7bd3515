#include "server/router/service_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "absl/strings/str_cat.h"
#include "tests/testing/fake_clock.h"

namespace runahead {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Keeps what it is told, as words.
class KeepingSeats : public Seats {
 public:
  absl::Status Occupy(int seat, const std::string& address) override {
    Add(absl::StrCat("occupy ", seat, " ", address));
    MutexLock lock(mu_);
    return refuses_ ? absl::ResourceExhaustedError("no thread") : absl::OkStatus();
  }
  void Keep(int seat) override { Add(absl::StrCat("keep ", seat)); }
  bool Retire(int seat) override {
    MutexLock lock(mu_);
    if (!drained_.contains(seat)) words_.push_back(absl::StrCat("retire ", seat));
    return drained_.contains(seat) && drained_.at(seat);
  }
  void Vacate(int seat) override { Add(absl::StrCat("vacate ", seat)); }

  void Refuse(bool refuses) {
    MutexLock lock(mu_);
    refuses_ = refuses;
  }
  void Drained(int seat) {
    MutexLock lock(mu_);
    drained_[seat] = true;
  }
  std::vector<std::string> Take() {
    MutexLock lock(mu_);
    return std::exchange(words_, {});
  }

 private:
  void Add(std::string word) {
    MutexLock lock(mu_);
    words_.push_back(std::move(word));
  }
  Mutex mu_;
  std::vector<std::string> words_ RUNAHEAD_GUARDED_BY(mu_);
  std::map<int, bool> drained_ RUNAHEAD_GUARDED_BY(mu_);
  bool refuses_ RUNAHEAD_GUARDED_BY(mu_) = false;
};

class ServiceWatchTest : public ::testing::Test {
 protected:
  void Answer(const std::string& service, absl::StatusOr<std::set<std::string>> names) {
    MutexLock lock(mu_);
    names_.insert_or_assign(service, std::move(names));
  }
  void Start() {
    watch_ = std::make_unique<ServiceWatch>(
        seats_for_,
        [this](const std::string& service) -> absl::StatusOr<std::set<std::string>> {
          MutexLock lock(mu_);
          const auto found = names_.find(service);
          if (found == names_.end()) return absl::UnavailableError("no answer");
          return found->second;
        },
        seats_, absl::Seconds(5), clock_);
    clock_.AwaitWaiters(1);
  }
  void Pass(absl::Duration time) {
    clock_.Advance(time);
    clock_.AwaitWaiters(1);
  }

  const std::vector<WorkerSpec> seats_for_ =
      SeatsFor(std::vector<WorkerSpec>{{"decode", "d:1", ""}, {"prefill", "", "p"}, {"decode", "", "d"}});
  Mutex mu_;
  std::map<std::string, absl::StatusOr<std::set<std::string>>> names_ RUNAHEAD_GUARDED_BY(mu_);
  KeepingSeats seats_;
  testing::FakeClock clock_;
  std::unique_ptr<ServiceWatch> watch_;
};

TEST_F(ServiceWatchTest, AServiceHasSeatsWhereItStandsInTheList) {
  ASSERT_THAT(seats_for_, SizeIs(1 + 2 * kSeatsOfService));
  EXPECT_EQ(seats_for_[0].address, "d:1");
  EXPECT_EQ(seats_for_[1].service, "p");
  EXPECT_EQ(seats_for_[kSeatsOfService].role, "prefill");
  EXPECT_EQ(seats_for_[kSeatsOfService + 1].service, "d");
  EXPECT_TRUE(seats_for_[kSeatsOfService + 1].address.empty());
}

TEST_F(ServiceWatchTest, WhatIsNamedComesIntoTheSeatsOfItsOwnService) {
  Answer("p", std::set<std::string>{"p-0:1", "p-1:1"});
  Answer("d", std::set<std::string>{"d-0:1"});
  Start();
  EXPECT_THAT(seats_.Take(),
              ElementsAre(absl::StrCat("occupy ", kSeatsOfService + 1, " d-0:1"), "occupy 1 p-0:1", "occupy 2 p-1:1"));
  Answer("p", std::set<std::string>{"p-0:1", "p-1:1", "p-2:1"});
  Pass(absl::Seconds(4));
  EXPECT_THAT(seats_.Take(), IsEmpty()) << "it is not time yet";
  Pass(absl::Seconds(1));
  EXPECT_THAT(seats_.Take(), ElementsAre("occupy 3 p-2:1"));
}

TEST_F(ServiceWatchTest, ANameWithoutASeatForTheMomentComesAgainWithTheNextLookUp) {
  Answer("p", std::set<std::string>{"p-0:1"});
  seats_.Refuse(true);
  Start();
  EXPECT_THAT(seats_.Take(), ElementsAre("occupy 1 p-0:1"));
  Pass(absl::Seconds(5));
  EXPECT_THAT(seats_.Take(), ElementsAre("occupy 1 p-0:1"));
  seats_.Refuse(false);
  Pass(absl::Seconds(5));
  EXPECT_THAT(seats_.Take(), ElementsAre("occupy 1 p-0:1"));
  Pass(absl::Seconds(5));
  EXPECT_THAT(seats_.Take(), IsEmpty());
}

TEST_F(ServiceWatchTest, ALookUpThatFailsOrIsEmptyChangesNothing) {
  Answer("p", std::set<std::string>{"p-0:1"});
  Start();
  EXPECT_THAT(seats_.Take(), ElementsAre("occupy 1 p-0:1"));
  for (const absl::StatusOr<std::set<std::string>>& nothing :
       {absl::StatusOr<std::set<std::string>>(absl::NotFoundError("no such name")),
        absl::StatusOr<std::set<std::string>>(absl::UnavailableError("no answer")),
        absl::StatusOr<std::set<std::string>>(std::set<std::string>())}) {
    Answer("p", nothing);
    Pass(absl::Seconds(5));
    EXPECT_THAT(seats_.Take(), IsEmpty()) << nothing.status();
  }
}

TEST_F(ServiceWatchTest, ANameThatVanishesIsVacatedOnceItHasDrained) {
  Answer("p", std::set<std::string>{"p-0:1", "p-1:1"});
  Start();
  seats_.Take();
  Answer("p", std::set<std::string>{"p-0:1"});
  Pass(absl::Seconds(5));
  EXPECT_THAT(seats_.Take(), ElementsAre("retire 2"));
  Pass(absl::Milliseconds(500));
  EXPECT_THAT(seats_.Take(), ElementsAre("retire 2")) << "asked again long before the next look-up";
  seats_.Drained(2);
  Pass(absl::Milliseconds(500));
  EXPECT_THAT(seats_.Take(), ElementsAre("vacate 2"));
  Pass(absl::Milliseconds(500));
  EXPECT_THAT(seats_.Take(), IsEmpty());
}

TEST_F(ServiceWatchTest, ANameThatComesBackBeforeItHasDrainedStays) {
  Answer("p", std::set<std::string>{"p-0:1", "p-1:1"});
  Start();
  Answer("p", std::set<std::string>{"p-1:1"});
  Pass(absl::Seconds(5));
  Answer("p", std::set<std::string>{"p-0:1", "p-1:1"});
  seats_.Take();
  Pass(absl::Seconds(5));
  EXPECT_THAT(seats_.Take(), ElementsAre("keep 1"));
}

}  // namespace
}  // namespace runahead
