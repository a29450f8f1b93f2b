#include "collective/trial.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

namespace smddp {
namespace {

// So much more than usual means that something has changed, and that another way may be faster now.
constexpr double kChanged = 1.2;

// A way that costs so many times as much at its first two tries is not tried again in the same round.
constexpr double kHopeless = 2;

}  // namespace

void Trial::Costs::add(double cost) { kept_[added_++ % kKept] = cost; }

double Trial::Costs::typical() const {
  if (added_ == 0) return std::numeric_limits<double>::max();
  if (added_ == 1) return last(1);
  if (added_ == 2) return std::max(last(1), last(2));
  if (added_ < kKept) return std::max(std::min(last(1), last(2)), std::min(std::max(last(1), last(2)), last(3)));
  std::array<double, kKept> sorted = kept_;
  std::sort(sorted.begin(), sorted.end());
  constexpr std::size_t kThird = kKept / 3;
  return std::accumulate(sorted.begin() + kThird, sorted.end() - kThird, 0.0) / (kKept - 2 * kThird);
}

double Trial::Costs::least() const {
  if (added_ < 2) return 0;
  return std::min({last(1), last(2), added_ == 2 ? last(1) : last(3)});
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
  switch (phase_) {
    case Phase::settled:
      if (rested(1)) {
        before_ = cost_of(chosen_);
        phase_ = Phase::trying;
        try_next();
      }
      break;
    case Phase::trying:
      if (left_ <= 0) try_next();
      break;
    case Phase::proving:
      if (left_ <= 0 || (left_ <= kProof - kBurst && since_ >= kProofSeconds))
        settle(gains(planned_) ? planned_ : chosen_);
      break;
  }
  return planned_;
}

void Trial::try_next() {
  planned_ = (planned_ + 1) % ways_;
  left_ = kBurst;
  if (planned_ == chosen_)
    compare();
  else
    costs_[static_cast<std::size_t>(planned_)] = {};
}

// All others had their turn.
void Trial::compare() {
  int best = (chosen_ + 1) % ways_;
  for (int way = 0; way < ways_; ++way)
    if (way != chosen_ && cost_of(way) < cost_of(best)) best = way;
  if (!gains(best)) return settle(chosen_);
  planned_ = best;
  phase_ = Phase::proving;
  left_ = kProof;
  since_ = 0;
}

void Trial::settle(int way) {
  stretch_ = way == chosen_ ? std::min(2 * stretch_, kLongestStretch) : kFirstStretch;
  usual_ = way == chosen_ ? before_ : cost_of(way);
  chosen_ = planned_ = way;
  phase_ = Phase::settled;
  left_ = stretch_;
  since_ = 0;
}

void Trial::took(double seconds, std::size_t bytes) {
  costs_[static_cast<std::size_t>(way_)].add(seconds / static_cast<double>(bytes));
  since_ += seconds;
  if (way_ != planned_) return;
  const double now = cost_of(way_);
  if (phase_ == Phase::trying) {
    if (costs_[static_cast<std::size_t>(way_)].least() > kHopeless * before_) left_ = 1;
  } else if (phase_ == Phase::settled && usual_ > 0) {
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
