// Times contenders in interleaved rounds. Contenders that are clearly slower than the best are
// dropped early.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <vector>

#include "core/errors.h"
#include "core/tune/energy.h"
#include "core/tune/measure.h"
#include "core/tune/problem_sequence.h"
#include "core/tune/ranking.h"
#include "core/tune/rotating_buffers.h"
#include "core/tune/time_budget.h"

namespace torch_cudnn_ext {

class Rounds {
 public:
  Rounds(ProblemSequence& sequence, const TimeBudget& budget, const MeasureOptions& options,
         Prefer prefer)
      : sequence_(sequence),
        buffers_(sequence),
        budget_(budget),
        options_(options),
        ranking_(prefer),
        runtime_(runtime_of(sequence.device)),
        timer_(runtime_.make_timer(sequence.device)) {}

  // Times a contender once and adds it. If its run throws, this throws the same and does not add
  // it.
  void add(Contender contender) {
    sample(contender);
    contenders_.push_back(std::move(contender));
  }

  // A spent budget still allows three rounds, unless those take more than twice the budget.
  void time(int rounds) {
    for (int round = 1; round < rounds && !budget_.is_spent(kLongest); ++round) {
      time_one(round < 3);
      options_.report(round, rounds, Algorithm{"timing", "round", {}});
      if (round >= 3 && budget_.is_spent()) break;
    }
    options_.announce_other_work();
  }

  // Times the few contenders that may still be the best for more rounds.
  void time_finalists() {
    constexpr size_t kFinalists = 6;
    std::vector<Contender*> order = best_first();
    for (size_t i = 0; i < order.size(); ++i) {
      order[i]->running = i < kFinalists || order[i]->algorithm().is_baseline();
    }
    if (!budget_.is_spent()) time(2 * options_.min_samples);
  }

  // Measures the energy of those that may still be the best.
  void measure_energy() {
    for (Contender& c : contenders_) {
      if (!c.running) continue;
      options_.announce(c.algorithm());
      try {
        c.energies =
            energy_of_calls(sequence_.device, c.best, [&] { sequence_.run(c.plans, [] {}); });
      } catch (const c10::Error& error) {
        c.measurement->set_failed(error);
      }
    }
    drop_failed();
    options_.announce_other_work();
  }

  // Times for more rounds what may be faster than the baseline but is not known to be.
  void time_undecided() {
    constexpr int kTimes = 2;
    for (int i = 0; i < kTimes && !budget_.is_spent(); ++i) {
      std::vector<Contender*> undecided = settled().undecided;
      if (undecided.empty()) return;
      for (Contender& c : contenders_) c.running = c.algorithm().is_baseline();
      for (Contender* c : undecided) c->running = true;
      time(options_.min_samples);
    }
  }

  const std::vector<Contender>& contenders() const { return contenders_; }
  std::vector<Contender*> best_first() { return ranking_.best_first(contenders_); }
  // On a busy machine no time counts for what seems to be faster than the baseline.
  Settled settled() {
    Settled found = ranking_.settled(contenders_);
    const Contender* baseline = find_baseline(contenders_);
    bool wins = baseline != nullptr && found.order.front() != baseline;
    if (!wins || !timer_->is_machine_busy()) return found;
    for (Contender& c : contenders_) {
      for (Sample& s : c.samples) s.disturbed = true;
    }
    return ranking_.settled(contenders_);
  }
  double best_cost(const Contender& c) const { return ranking_.cost(c.best, c.best_host); }
  void free_buffers() { buffers_.free(); }

 private:
  static constexpr double kLongest = 2;  // times the budget; then even a round that has begun stops

  // Drops contenders that take more than twice the best time, and from the third round on those
  // that take more than 1.25 times the best time. The baseline stays, since all others are compared
  // with it.
  void time_one(bool early) {
    buffers_.advance();
    ++round_;
    const Contender* found = find_baseline(contenders_);
    double baseline = found != nullptr ? found->best : kInfinity;
    double best = kInfinity;  // of the contenders that may win
    for (const Contender& c : contenders_) {
      if (c.best <= ranking_.limit_of_baseline(baseline)) best = std::min(best, best_cost(c));
    }
    // A launch-bound time has an absolute noise of a few microseconds.
    auto limit = [&](double ms) { return ms * (early ? 2.0 : 1.25) + 0.002; };
    for (Contender& c : contenders_) {
      // An algorithm's first calls may take the host many times as long as later ones, so the
      // host's time does not count in early rounds.
      double own = early ? c.best : best_cost(c);
      // A single short sample may include a time slice that the scheduler gave to others.
      constexpr double kSliceMs = 50;
      bool is_sure = c.samples.size() > 1 || c.best > kSliceMs;
      bool hopeless = is_sure && (own > limit(best) || c.best > limit(baseline));
      c.running = c.running && (c.algorithm().is_baseline() || !hopeless);
      if (!c.running || budget_.is_spent(kLongest)) continue;
      try {
        sample(c);
      } catch (const c10::Error& error) {
        c.measurement->set_failed(error);
      }
    }
    note_clocks();
    drop_failed();
  }

  // A reading holds for what was timed in the round; the first one also for what was timed before.
  // Reading takes a small share of the time, however long the driver takes.
  void note_clocks() {
    constexpr double kShare = 0.02;
    if (reading_s_ > kShare * seconds_since(start_)) return;
    auto start = SteadyClock::now();
    std::optional<Clocks> now = runtime_.clocks(sequence_.device);
    reading_s_ += seconds_since(start);
    if (!now) return;
    for (const Contender& c : contenders_) {
      if (c.running || !c.measurement->clock_low_mhz) c.measurement->note_clocks(*now);
    }
  }

  void drop_failed() {
    auto failed = [](const Contender& c) {
      return c.measurement->status == Measurement::Status::failed;
    };
    contenders_.erase(std::remove_if(contenders_.begin(), contenders_.end(), failed),
                      contenders_.end());
  }

  // Takes one sample. If the device may have waited for the host, the sample is taken again with a
  // longer head start: an algorithm's first call may take the host many times as long as later
  // ones. On a CPU it is taken once more if other work took a core meanwhile.
  void sample(Contender& contender) {
    const int longest_head_start = sequence_.device.is_cuda() ? 64 : 4;
    constexpr double kShortMs = 1;
    options_.announce(contender.algorithm());
    count_timed_run();
    // A sample is to find cold data but warm code. Fetching the code of a large tile takes 5 us.
    bool is_cold = sequence_.device.is_cuda() || options_.before_run;
    if (is_cold && contender.best < kShortMs) sequence_.run(contender.plans, [] {});
    for (int head_starts = 1; head_starts <= longest_head_start; head_starts *= 4) {
      sequence_.run(contender.plans, [&] {
        if (options_.flush_cache) runtime_.flush_cache(sequence_.device);
        timer_->start(head_starts);
      });
      timer_->stop();
      if (timer_->host_was_ahead()) break;
    }
    double ms = timer_->milliseconds();
    std::optional<double> host_ms = timer_->host_milliseconds();
    // A GPU may have to wait for its host every time; a host that is slow by itself tells nothing.
    bool disturbed = !sequence_.device.is_cuda() && !timer_->host_was_ahead();
    contender.samples.push_back({round_, ms, host_ms, disturbed});
    contender.best = std::min(contender.best, ms);
    contender.best_host = std::min(contender.best_host, host_ms.value_or(0));
  }

  ProblemSequence& sequence_;
  RotatingBuffers buffers_;
  const TimeBudget& budget_;
  const MeasureOptions& options_;
  const Ranking ranking_;
  const DeviceRuntime& runtime_;
  const std::unique_ptr<Timer> timer_;
  std::vector<Contender> contenders_;
  int round_ = 0;
  const SteadyClock::time_point start_ = SteadyClock::now();
  double reading_s_ = 0;  // of clocks
};

}  // namespace torch_cudnn_ext
