// Which of two ways of an operation is faster, found out by going both.
//
// A measurement when a group is made does not hold: virtual machines move between cores that share a cache and cores
// that do not, from one second to the next, and what then wins by half may lose by half later. So the operations
// themselves are timed, and the way that is not chosen is tried again now and then, ever more rarely while it goes on
// losing. (Faraj, Yuan, Lowenthal: STAR-MPI, Self Tuned Adaptive Routines for MPI Collective Operations, ICS 2006.)
//
// The first rank of a host measures and plans; it tells the others in the announcement of an operation how the next one
// is to go, so that all know before it begins.
#pragma once

#include <array>
#include <cstddef>

namespace smddp {

class Trial {
 public:
  /// Operations in a row of the way that is tried. The last is not timed before the next are planned.
  static constexpr int kBurst = 4;
  /// Operations of the chosen way between two trials of the other: at first, and at most.
  static constexpr int kFirstStretch = 48;
  static constexpr int kLongestStretch = 384;

  /// Whether the operation that begins goes the second way.
  bool second() const { return second_; }

  /// First rank, when an operation begins: whether the one after it is to go the second way.
  bool plan();

  /// First rank, when an operation ends that went as second() says. @param cost its time, for a byte: sizes differ.
  void took(double cost);

  /// All ranks, when an operation ends: what was planned.
  void follow(bool second) { second_ = second; }

 private:
  /// What the last operations of a way cost: the least counts, as what disturbs only ever adds.
  class Costs {
   public:
    void add(double cost);
    double least() const;

   private:
    std::array<double, kBurst - 1> last_{};
    std::size_t added_ = 0;
  };

  bool second_ = false;
  bool chosen_ = false;   // the way that won
  bool planned_ = false;  // the way planned for now
  int left_ = kBurst;     // operations to plan so
  int stretch_ = kFirstStretch / 2;
  std::array<Costs, 2> costs_;
};

}  // namespace smddp
