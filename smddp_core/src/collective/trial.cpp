#include "collective/trial.hpp"

#include <algorithm>
#include <limits>

namespace smddp {
namespace {

// What changes the way must gain so much, or equals would change places all the time.
constexpr double kGain = 0.95;

// So much more than usual means that something has changed, and that another way may be faster now.
constexpr double kChanged = 1.2;

// A way that costs so many times as much at its first two tries is not tried again in the same round.
constexpr double kHopeless = 2;

}  // namespace

void Trial::Costs::add(double cost) { last_[added_++ % last_.size()] = cost; }

double Trial::Costs::median() const {
  const auto [a, b, c] = last_;
  switch (added_) {
    case 0:
      return std::numeric_limits<double>::max();
    case 1:
      return a;
    case 2:
      return std::max(a, b);
    default:
      return std::max(std::min(a, b), std::min(std::max(a, b), c));
  }
}

double Trial::Costs::least() const {
  if (added_ < 2) return 0;
  return std::min({last_[0], last_[1], added_ == 2 ? last_[0] : last_[2]});
}

// Whether a part of a stretch is over. By time as well: trials of operations of few microseconds would else cost a
// hundredth of them, and cores do not change places so often.
bool Trial::rested(double part) const {
  const bool first = usual_ == 0;
  const double due = kLongestSeconds * stretch_ / kLongestStretch;
  return stretch_ - left_ >= part * stretch_ && (first || since_ >= part * due);
}

int Trial::plan() {
  --left_;
  if (planned_ == chosen_ ? !rested(1) : left_ > 0) return planned_;
  planned_ = (planned_ + 1) % ways_;
  left_ = kBurst;
  if (planned_ == chosen_)
    choose();
  else
    costs_[static_cast<std::size_t>(planned_)] = {};
  return planned_;
}

// All others had their turn.
void Trial::choose() {
  int best = chosen_;
  for (int way = 0; way < ways_; ++way)
    if (cost_of(way) < cost_of(best)) best = way;
  if (cost_of(best) < kGain * cost_of(chosen_)) {
    chosen_ = planned_ = best;
    stretch_ = kFirstStretch;
  } else {
    stretch_ = std::min(2 * stretch_, kLongestStretch);
  }
  left_ = stretch_;
  since_ = 0;
  usual_ = cost_of(chosen_);
}

void Trial::took(double seconds, std::size_t bytes) {
  costs_[static_cast<std::size_t>(way_)].add(seconds / static_cast<double>(bytes));
  since_ += seconds;
  if (way_ != planned_) return;
  const double now = cost_of(way_);
  if (planned_ != chosen_) {
    if (costs_[static_cast<std::size_t>(way_)].least() > kHopeless * cost_of(chosen_)) left_ = 1;
  } else if (usual_ > 0) {
    // Not too often: costs vary by themselves, too (an eighth of the stretch instead of half of it: 16 KiB between 4
    // hosts 222 us instead of 210).
    if (now > kChanged * usual_ && rested(0.5)) {
      left_ = 1;
      since_ = std::numeric_limits<double>::max();
    }
    usual_ = std::min(usual_, now);
  }
}

}  // namespace smddp
