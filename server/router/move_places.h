// How many sequences move from one decode worker to another at once.
#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace runahead {

// Thread-safe. Each moves the sooner, and stands still the shorter, the fewer share the network and the cores.
class MovePlaces {
 public:
  static constexpr int kMost = 4;

  // Given back when destroyed, also after the MovePlaces is gone.
  class Place {
   public:
    explicit Place(std::shared_ptr<std::atomic<int>> taken) : taken_(std::move(taken)) {}
    ~Place() { --*taken_; }
    Place(const Place&) = delete;
    Place& operator=(const Place&) = delete;

   private:
    const std::shared_ptr<std::atomic<int>> taken_;
  };

  // Null: all are taken now.
  std::unique_ptr<Place> Take() {
    if (taken_->fetch_add(1) < kMost) return std::make_unique<Place>(taken_);
    --*taken_;
    return nullptr;
  }

 private:
  const std::shared_ptr<std::atomic<int>> taken_ = std::make_shared<std::atomic<int>>(0);
};

}  // namespace runahead
