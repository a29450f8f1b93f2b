#include "collective/trial.hpp"

#include <algorithm>
#include <limits>

namespace smddp {
namespace {

// What changes the way must gain so much, or equals would change places all the time.
constexpr double kGain = 0.95;

}  // namespace

void Trial::Costs::add(double cost) { last_[added_++ % last_.size()] = cost; }

double Trial::Costs::least() const {
  const auto end = last_.begin() + static_cast<std::ptrdiff_t>(std::min(added_, last_.size()));
  return added_ == 0 ? std::numeric_limits<double>::max() : *std::min_element(last_.begin(), end);
}

bool Trial::plan() {
  if (--left_ > 0) return planned_;
  if (planned_ == chosen_) {
    planned_ = !chosen_;
    left_ = kBurst;
    return planned_;
  }
  if (costs_[planned_ ? 1 : 0].least() < kGain * costs_[chosen_ ? 1 : 0].least()) {
    chosen_ = planned_;
    stretch_ = kFirstStretch;
  } else {
    planned_ = chosen_;
    stretch_ = std::min(2 * stretch_, kLongestStretch);
  }
  left_ = stretch_;
  return planned_;
}

void Trial::took(double cost) { costs_[second_ ? 1 : 0].add(cost); }

}  // namespace smddp
