// Whether one algorithm is faster than another beyond the noise of both, by order statistics of the
// rounds in which both were timed. Knows neither algorithms nor clocks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace torch_cudnn_ext {

// unstable: the noise hides whether it is faster by more than a tenth.
enum class Comparison : uint8_t { faster, no_faster, unstable };

inline constexpr size_t kFewRounds = 3;

// The times of one round.
struct Pair {
  double own, other;
};

// The largest rank k, from 0, for which at most k of n fair coins show heads in 1 % of all throws.
// The k-th of n sorted values, from either end, then bounds their median with that certainty. -1 if
// n is too small for any.
inline int rank_of_bound(int n) {
  constexpr double kError = 0.01;
  double term = 1;
  for (int i = 0; i < n; ++i) term /= 2;
  double sum = term;
  int k = -1;
  while (sum <= kError && k < n) {
    ++k;
    term *= static_cast<double>(n - k) / (k + 1);
    sum += term;
  }
  return k;
}

// Whether even the shortest time is clearly above the longest of the other: other work, which only
// makes times longer, need not be told apart then.
inline bool is_much_slower(const std::vector<Pair>& rounds) {
  if (rounds.empty()) return false;
  double much = rounds.size() < kFewRounds ? 2 : 1.25;
  double shortest = rounds[0].own, longest = rounds[0].other;
  for (const Pair& pair : rounds) {
    shortest = std::min(shortest, pair.own);
    longest = std::max(longest, pair.other);
  }
  return shortest >= much * longest;
}

// Compares times by the median of their ratios. Ratios are paired by round, so that what slows all
// algorithms at a time does not count. `limit` is the ratio from which the other one is as good.
inline Comparison compare(const std::vector<Pair>& rounds, double limit) {
  constexpr double kGain = 0.9;   // of the limit; a smaller ratio is a gain that must not be missed
  constexpr double kClear = 0.5;  // what one or two rounds have to show
  constexpr double kTinyMs = 1e-9;
  if (rounds.empty()) return Comparison::unstable;
  Pair longest = rounds[0], shortest = rounds[0];
  std::vector<double> ratios;
  for (const Pair& pair : rounds) {
    ratios.push_back((pair.own + kTinyMs) / (pair.other + kTinyMs));
    longest = {std::max(longest.own, pair.own), std::max(longest.other, pair.other)};
    shortest = {std::min(shortest.own, pair.own), std::min(shortest.other, pair.other)};
  }
  if (ratios.size() < kFewRounds) {
    bool is_clear = longest.own < kClear * shortest.other;
    return is_clear ? Comparison::faster : Comparison::no_faster;
  }
  std::sort(ratios.begin(), ratios.end());
  int rank = rank_of_bound(static_cast<int>(ratios.size()));
  size_t margin = std::max(rank, 0);
  double low = ratios[margin], high = ratios[ratios.size() - 1 - margin];
  // Of too few rounds for a bound, every time has to be shorter than all of the other's.
  bool is_faster = rank >= 0 ? high < limit : longest.own < limit * shortest.other;
  if (is_faster) return Comparison::faster;
  // One slow time of the other does not hide that an algorithm is slower.
  bool is_slower = ratios[ratios.size() / 2] >= limit && shortest.own >= limit * shortest.other;
  bool gains_little = low >= kGain * limit;
  return is_slower || gains_little ? Comparison::no_faster : Comparison::unstable;
}

}  // namespace torch_cudnn_ext
