// Which of several ways of an operation is the fastest, found out by going all of them.
//
// A measurement when a group is made does not hold: virtual machines move between cores that share a cache and cores
// that do not, from one second to the next, and what then wins by half may lose by half later. So the operations
// themselves are timed, and the ways that are not chosen are tried again now and then, ever more rarely while they go
// on losing, and soon when the chosen one takes longer than it used to. (Faraj, Yuan, Lowenthal: STAR-MPI, Self
// Tuned Adaptive Routines for MPI Collective Operations, ICS 2006.)
//
// The first rank of a host measures and plans; it tells the others in the announcement of an operation how the next one
// is to go, so that all know before it begins.
#pragma once

#include <array>
#include <cstddef>

namespace smddp {

class Trial {
 public:
  static constexpr int kMostWays = 3;
  /// Operations in a row of a way that is tried. The last is not timed before the next are planned, and of the first
  /// two, memory is in the caches where another way wanted it (1 MiB on one host, in us: 147, 47, 46, 47).
  static constexpr int kBurst = 6;
  /// Operations more of a way that did better, before it is chosen, or kProofSeconds if they come first: a link with a
  /// limit saves up what the chosen way leaves of it, and the first operations of another ride on that. (16 KiB between
  /// 4 hosts at 1 Gbit/s, sent whole to two peers in turn: 29 to 165 us, and 280 when the savings are gone.)
  static constexpr int kProof = 30;
  static constexpr double kProofSeconds = 0.008;
  /// Operations of the chosen way between two rounds of trials of the others: at first, and at most. They take at least
  /// kLongestSeconds together, or as much less as they are fewer than the most.
  static constexpr int kFirstStretch = 48;
  static constexpr int kLongestStretch = 384;
  static constexpr double kLongestSeconds = 0.05;

  /// @param ways how many there are, of at most kMostWays; the first is chosen until others were tried.
  explicit Trial(int ways) : ways_(ways) {}

  /// How the operation that begins goes, from 0.
  int way() const { return way_; }

  /// First rank, when an operation begins: how the one after it is to go.
  int plan();

  /// First rank, when an operation of `bytes` bytes ends that went as way() says. Compared is the time for a byte,
  /// since sizes differ.
  void took(double seconds, std::size_t bytes);

  /// All ranks, when an operation ends: what was planned.
  void follow(int way) { way_ = way; }

 private:
  enum class Phase { settled, trying, proving };

  /// What the last operations of a way cost.
  class Costs {
   public:
    void add(double cost);
    /// Of kKept operations, the mean of the middle third: those of one rank are short and long in turns where its
    /// peers come first and last in turns, and some of them are disturbed. Of fewer, the median of the last three.
    double typical() const;
    /// Of the last three, or two; 0: there were not so many.
    double least() const;

   private:
    static constexpr std::size_t kKept = 12;

    double last(std::size_t ago) const { return kept_[(added_ - ago) % kKept]; }

    std::array<double, kKept> kept_{};
    std::size_t added_ = 0;
  };

  double cost_of(int way) const { return costs_[static_cast<std::size_t>(way)].typical(); }
  /// Whether the way costs so much less than the chosen one did that it is worth a change.
  bool gains(int way) const { return cost_of(way) < kGain * before_; }
  void try_next();
  void compare();
  void settle(int way);
  bool rested(double part) const;

  // What changes the way must gain so much, or equals would change places all the time.
  static constexpr double kGain = 0.95;

  int ways_;
  int way_ = 0;
  Phase phase_ = Phase::settled;
  int chosen_ = 0;     // the way that won
  int planned_ = 0;    // the way planned for now
  int left_ = kBurst;  // operations to plan so
  int stretch_ = kFirstStretch / 2;
  double since_ = 0;   // seconds that operations took since others were tried, or since the proof began
  double usual_ = 0;   // what the chosen way cost when it was chosen, or less. 0: not known
  double before_ = 0;  // what it cost before others were tried
  std::array<Costs, kMostWays> costs_;
};

}  // namespace smddp
