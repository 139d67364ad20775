// The time that one measuring may take, and how much of it is spent.
#pragma once

#include <chrono>

namespace torch_cudnn_ext {

using SteadyClock = std::chrono::steady_clock;

inline double seconds_since(SteadyClock::time_point start) {
  return std::chrono::duration<double>(SteadyClock::now() - start).count();
}

class TimeBudget {
 public:
  explicit TimeBudget(double limit_s) : limit_s_(limit_s) {}  // 0: no limit
  // `share` is the part of the budget that may be used up.
  bool is_spent(double share = 1) const {
    return limit_s_ > 0 && seconds_since(start_) - excluded_s_ > limit_s_ * share;
  }
  void exclude(double seconds) { excluded_s_ += seconds; }

 private:
  const SteadyClock::time_point start_ = SteadyClock::now();
  const double limit_s_;
  double excluded_s_ = 0;
};

}  // namespace torch_cudnn_ext
