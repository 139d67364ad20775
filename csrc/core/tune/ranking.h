// Ranks measured algorithms by the cost of their times, and breaks ties.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <optional>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "core/policy/resolve.h"
#include "core/tune/comparison.h"
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

// Half of the interquartile range.
inline double spread(const std::vector<double>& values) {
  return (percentile(values, 0.75) - percentile(values, 0.25)) / 2;
}

// One timed run, in milliseconds.
struct Sample {
  int round;  // 0: before the rounds
  double ms;
  std::optional<double> host_ms;  // if the host runs ahead
  bool disturbed;                 // other work of the machine may have taken a part of the time
};

// An algorithm with its plans, and its times so far.
struct Contender {
  Measurement* measurement;
  std::vector<std::shared_ptr<Plan>> plans;  // one per step
  std::vector<Sample> samples;
  double best = kInfinity, best_host = kInfinity;  // the shortest times of each
  std::vector<double> energies;                    // of a call, in millijoules
  bool running = true;

  const Algorithm& algorithm() const { return measurement->algorithm; }
  // The times that count: those that nothing disturbed, or all if there is none.
  std::vector<double> times() const {
    std::vector<double> list;
    for (const Sample& s : counted()) list.push_back(s.ms);
    return list;
  }
  std::vector<double> host_times() const {
    std::vector<double> list;
    for (const Sample& s : counted()) {
      if (s.host_ms) list.push_back(*s.host_ms);
    }
    return list;
  }
  double median_ms() const { return percentile(times(), 0.5); }
  void write_statistics() const {
    std::vector<double> own = times(), of_host = host_times();
    measurement->median_ms = percentile(own, 0.5);
    measurement->spread_ms = spread(own);
    if (!of_host.empty()) measurement->host_ms = percentile(of_host, 0.5);
    measurement->samples = static_cast<int64_t>(own.size());
    if (energies.empty()) return;
    measurement->energy_mj = percentile(energies, 0.5);
    measurement->energy_spread_mj = spread(energies);
  }

 private:
  std::vector<Sample> counted() const {
    std::vector<Sample> list;
    for (const Sample& s : samples) {
      if (!s.disturbed) list.push_back(s);
    }
    return list.empty() ? samples : list;
  }
};

// PyTorch's own kernel; null if it did not run.
inline const Contender* find_baseline(const std::vector<Contender>& contenders) {
  for (const Contender& c : contenders) {
    if (c.algorithm().is_baseline()) return &c;
  }
  return nullptr;
}

struct Settled {
  std::vector<Contender*> order;      // best first; before the baseline only what is proven faster
  std::vector<Contender*> unstable;   // may be faster by much, but the times do not tell
  std::vector<Contender*> undecided;  // these, and what seems to be faster; more rounds may tell
};

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
      std::vector<double> of_host = c.host_times();
      double host = of_host.empty() ? 0 : percentile(of_host, 0.5);
      ranks.push_back({&c, percentile(c.times(), 0.75), host, cost(device, host),
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

  // Whether a contender is faster than the baseline, by the rounds in which both were timed. If
  // memory is preferred, a smaller workspace makes up for some time.
  Comparison compared(const Contender& one, const Contender& baseline) const {
    auto bytes = [](const Contender& c) { return c.measurement->workspace_bytes.value_or(0); };
    double ms = baseline.median_ms();
    bool saves = prefer_ == Prefer::memory && bytes(one) < bytes(baseline);
    std::vector<Pair> pairs, disturbed;
    bool is_first = false;  // a pair of times from before the rounds
    int rounds = 0;
    for (const Sample& own : one.samples) {
      for (const Sample& other : baseline.samples) {
        if (own.round != other.round) continue;
        rounds += own.round > 0 ? 1 : 0;
        bool counts = !own.disturbed && !other.disturbed;
        is_first = is_first || (counts && own.round == 0);
        (counts ? pairs : disturbed)
            .push_back(
                {cost(own.ms, own.host_ms.value_or(0)), cost(other.ms, other.host_ms.value_or(0))});
      }
    }
    // A first time may hold what a first call costs. It counts if there is no other.
    if (is_first && rounds > 0) pairs.erase(pairs.begin());
    // By chance, five times are all shorter than five others in 0.4 % of cases, three in 5 %.
    constexpr size_t kFew = 5;
    bool mostly_disturbed = pairs.empty() || (!disturbed.empty() && pairs.size() < kFew);
    if (mostly_disturbed) {
      disturbed.insert(disturbed.end(), pairs.begin(), pairs.end());
      return is_much_slower(disturbed) ? Comparison::no_faster : Comparison::unstable;
    }
    // Other work slows some algorithms more than others, also in rounds that it did not disturb.
    // What uses all cores suffers most.
    constexpr double kLimitBesideOtherWork = 0.8;
    double limit = saves && ms > 0 ? limit_of_baseline(ms) / ms : 1;
    return compare(pairs, disturbed.empty() ? limit : limit * kLimitBesideOtherWork);
  }

  // Puts the baseline before all that are not faster beyond noise.
  Settled settled(std::vector<Contender>& contenders) const {
    Settled result;
    std::vector<Contender*> order = best_first(contenders), others;
    const Contender* baseline = find_baseline(contenders);
    if (baseline == nullptr) return {order, {}, {}};
    if (prefer_ == Prefer::energy && !baseline->energies.empty()) {
      return {by_energy(order, *baseline), {}, {}};
    }
    bool is_before = true;
    for (Contender* c : order) {
      if (c == baseline) {
        is_before = false;
        others.insert(others.begin(), c);
        continue;
      }
      Comparison known = compared(*c, *baseline);
      bool wins = known == Comparison::faster && is_before;
      (wins ? result.order : others).push_back(c);
      bool is_unstable = known == Comparison::unstable && !ignores_other_work();
      if (is_unstable) result.unstable.push_back(c);
      bool seems_faster = is_before && limit_of_equal(median_cost(*c)) < median_cost(*baseline);
      if (is_unstable || (seems_faster && !wins)) result.undecided.push_back(c);
    }
    result.order.insert(result.order.end(), others.begin(), others.end());
    return result;
  }

 private:
  // Sorts by energy. Before the baseline comes only what took less in every window; what has no
  // energy comes last.
  static std::vector<Contender*> by_energy(std::vector<Contender*> order,
                                           const Contender& baseline) {
    auto least = [](const Contender& c) { return percentile(c.energies, 0); };
    auto key = [&](const Contender* c) {
      bool is_known = !c->energies.empty();
      bool wins = is_known && percentile(c->energies, 1) < least(baseline);
      int place = wins ? 0 : c == &baseline ? 1 : is_known ? 2 : 3;
      return std::pair(place, is_known ? percentile(c->energies, 0.5) : 0);
    };
    std::stable_sort(order.begin(), order.end(),
                     [&](const Contender* a, const Contender* b) { return key(a) < key(b); });
    return order;
  }

  struct Rank {
    Contender* contender;
    double upper_ms, host_ms, cost;  // upper_ms: the device's upper quartile
    bool above_baseline;
  };

  double median_cost(const Contender& c) const {
    std::vector<double> of_host = c.host_times();
    return cost(c.median_ms(), of_host.empty() ? 0 : percentile(of_host, 0.5));
  }

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
