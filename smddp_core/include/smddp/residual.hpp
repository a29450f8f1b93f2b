// What rounding to a 16-bit wire format has left out of a tensor's sums so far.
#pragma once

#include <cstddef>
#include <vector>

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
    sent_.clear();
    reduced_.clear();
  }

  /// Memory taken.
  std::size_t bytes() const { return (sent_.size() + reduced_.size()) * sizeof(float); }

  /// Starts a message of which this rank sends `count` elements; of another size than the last one, it begins at zero.
  void begin(std::size_t count) {
    if (sent_.size() == count) return;
    clear();
    sent_.resize(count);
  }

  /// Of elements `at` .. `at + count` of what this rank sends. `at + count` is within begin()'s count.
  float* sent(std::size_t at) { return sent_.data() + at; }

  /// Of elements `at` .. `at + count` of what this rank sums.
  float* reduced(std::size_t at, std::size_t count) {
    if (reduced_.size() < at + count) reduced_.resize(at + count);
    return reduced_.data() + at;
  }

 private:
  std::vector<float> sent_;
  std::vector<float> reduced_;
};

}  // namespace smddp
