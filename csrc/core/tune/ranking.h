// Ranks measured algorithms by the cost of their times, and breaks ties.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <tuple>
#include <vector>

#include "core/policy/resolve.h"
#include "core/tune/tuning_table.h"

namespace torch_cudnn_ext {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

inline double percentile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  double position = q * static_cast<double>(values.size() - 1);
  auto low = static_cast<size_t>(position);
  size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (values[high] - values[low]) * (position - static_cast<double>(low));
}

// An algorithm with its plans, and its times so far in milliseconds.
struct Contender {
  Measurement* measurement;
  std::vector<std::shared_ptr<Plan>> plans;        // one per step
  std::vector<double> samples, host_samples;       // host_samples: if the host runs ahead
  double best = kInfinity, best_host = kInfinity;  // the shortest of each
  bool running = true;

  const Algorithm& algorithm() const { return measurement->algorithm; }
  double median_ms() const { return percentile(samples, 0.5); }
  void write_statistics() const {
    measurement->median_ms = median_ms();
    measurement->spread_ms = (percentile(samples, 0.75) - percentile(samples, 0.25)) / 2;
    if (!host_samples.empty()) measurement->host_ms = percentile(host_samples, 0.5);
    measurement->samples = static_cast<int64_t>(samples.size());
  }
};

// PyTorch's own kernel; null if it did not run.
inline const Contender* find_baseline(const std::vector<Contender>& contenders) {
  for (const Contender& c : contenders) {
    if (c.algorithm().is_baseline()) return &c;
  }
  return nullptr;
}

class Ranking {
 public:
  explicit Ranking(Prefer prefer) : prefer_(prefer) {}

  // The time that is ranked. A network waits for its host if the host takes longer than the device.
  double cost(double device_ms, double host_ms) const {
    return prefer_ == Prefer::gpu_time ? device_ms : std::max(device_ms, host_ms);
  }

  // A device time up to this limit counts as no longer than the baseline's. A difference of half a
  // microsecond counts if it is more than 3 %.
  double limit_of_baseline(double ms) const {
    double equal = limit_of_equal(ms);
    if (prefer_ == Prefer::gpu_time || prefer_ == Prefer::memory) return equal;
    return std::min(equal, std::max(ms * 1.03, ms + 0.0001));
  }

  // Sorts by cost. Contenders that take the device longer than the baseline come after all others.
  std::vector<Contender*> best_first(std::vector<Contender>& contenders) const {
    const Contender* found = find_baseline(contenders);
    double baseline = found != nullptr ? found->median_ms() : kInfinity;
    std::vector<Rank> ranks;
    for (Contender& c : contenders) {
      double device = c.median_ms();
      double host = c.host_samples.empty() ? 0 : percentile(c.host_samples, 0.5);
      ranks.push_back({&c, percentile(c.samples, 0.75), host, cost(device, host),
                       device > limit_of_baseline(baseline)});
    }
    std::stable_sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) {
      return std::tie(a.above_baseline, a.cost) < std::tie(b.above_baseline, b.cost);
    });
    break_ties(ranks);
    std::vector<Contender*> order;
    for (const Rank& r : ranks) order.push_back(r.contender);
    return order;
  }

 private:
  struct Rank {
    Contender* contender;
    double upper_ms, host_ms, cost;  // upper_ms: the device's upper quartile
    bool above_baseline;
  };

  // A time up to this limit counts as equal. The limit is 1 % above `ms`. It is 5 % above if memory
  // is preferred, and 0.5 % above if only the device's time counts. For short times it is the
  // resolution of events above, or half a microsecond if the host's time counts too.
  double limit_of_equal(double ms) const {
    if (prefer_ == Prefer::gpu_time) return std::max(ms * 1.005, ms + 0.0001);
    return std::max(ms * (prefer_ == Prefer::memory ? 1.05 : 1.01), ms + 0.0005);
  }

  // Sorts the ranks whose cost equals the first one's: by workspace, unless it is small, then by
  // the time of the host's call, then whether the kernel is fast in its slower runs too, then by
  // workspace of any size, then by the number of options.
  void break_ties(std::vector<Rank>& ranks) const {
    constexpr double kHostStepMs = 0.01, kUnsteady = 1.03;
    const int64_t small_bytes = prefer_ == Prefer::memory ? 0 : 1 << 20;
    double steadiest = kInfinity;
    auto end = ranks.begin();
    while (end != ranks.end() && end->above_baseline == ranks[0].above_baseline &&
           end->cost <= limit_of_equal(ranks[0].cost)) {
      steadiest = std::min(steadiest, end++->upper_ms);
    }
    auto key = [&](const Rank& r) {
      const Measurement& m = *r.contender->measurement;
      int64_t bytes = m.workspace_bytes.value_or(std::numeric_limits<int64_t>::max());
      int64_t host_steps = prefer_ == Prefer::gpu_time ? 0 : std::llround(r.host_ms / kHostStepMs);
      return std::tuple(bytes < small_bytes ? 0 : bytes, host_steps,
                        r.upper_ms > kUnsteady * steadiest, bytes, m.algorithm.options.size());
    };
    std::stable_sort(ranks.begin(), end,
                     [&](const Rank& a, const Rank& b) { return key(a) < key(b); });
  }

  const Prefer prefer_;
};

}  // namespace torch_cudnn_ext
