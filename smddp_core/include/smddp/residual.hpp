// What rounding to a 16-bit wire format has left out of a tensor's sums so far.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace smddp {

/// Error feedback (Seide et al., "1-bit stochastic gradient descent", Interspeech 2014; Karimireddy et al., "Error
/// feedback fixes SignSGD", ICML 2019): what a rank's rounding drops is kept in float32 and added to its next message,
/// so that over many messages nothing is lost.
///
/// The caller keeps one for each buffer that is summed again and again (a gradient bucket) and passes it along with it.
/// Costs 4 bytes an element that this rank sends, and 4 for each that it sums. Not for use by two operations at once.
class Residual {
 public:
  /// Forgets everything: the buffer holds another tensor now.
  void clear() {
    count_ = reduced_count_ = 0;
    sent_.reset();
    reduced_.reset();
  }

  /// Memory taken.
  std::size_t bytes() const { return (count_ + reduced_count_) * sizeof(float); }

  /// Starts a message of which this rank sends `count` elements; of another size than the last one, it begins at zero.
  /// @throws std::bad_alloc
  void begin(std::size_t count);

  /// Of elements `at` .. `at + count` of what this rank sends. `at + count` is within begin()'s count.
  float* sent(std::size_t at) { return sent_.get() + at; }

  /// Of elements `at` .. `at + count` of what this rank sums, which are no more than begin()'s count in all.
  float* reduced(std::size_t at, std::size_t count) {
    if (reduced_count_ < at + count) reduced_count_ = at + count;
    return reduced_.get() + at;
  }

 private:
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  /// Memory that is zero, and not there before it is used.
  using Zeros = std::unique_ptr<float[], Free>;
  static Zeros zeros(std::size_t count);

  std::size_t count_ = 0;
  std::size_t reduced_count_ = 0;
  Zeros sent_;
  Zeros reduced_;
};

}  // namespace smddp
