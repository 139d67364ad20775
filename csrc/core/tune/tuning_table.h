// Measurements, and the table that keeps them by problem, device and constraints: in memory, shared
// by all threads. The tuning store on disk belongs to Python.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/device.h"
#include "core/plan.h"

namespace torch_cudnn_ext {

// How the reason begins of a candidate that was pruned, that came after the time budget, or that
// found no memory.
constexpr const char* kLeftOut = "not tried: other knobs of its engine took ";
constexpr const char* kOutOfTime = "not tried: the time budget of ";
constexpr const char* kOutOfMemory = "out of memory";
// Of a candidate that is unstable.
constexpr const char* kTooNoisy =
    "other work disturbed the measurement: whether it is faster than PyTorch's own is unknown";

struct Measurement {
  // unstable: it ran and is right, but its times are too noisy to be compared.
  enum class Status : uint8_t {
    ok,
    unsupported,
    excluded,
    needs_driver,
    failed,
    rejected,
    unstable
  };

  Algorithm algorithm;
  std::string source;
  Status status = Status::unsupported;
  std::string reason;                          // empty when ok
  std::optional<double> median_ms, spread_ms;  // spread: half the interquartile range
  std::optional<double> host_ms;  // the host's median for a call; none if it does the work itself
  int64_t samples = 0;
  std::optional<int64_t> workspace_bytes;
  Notes notes;
  std::optional<double> error;                           // relative, against the float64 reference
  std::optional<int64_t> clock_low_mhz, clock_high_mhz;  // of the GPU while it was timed
  std::vector<std::string> throttled;  // why the driver held the clocks down meanwhile
  // Of a call: the median of some windows, and half of their interquartile range.
  std::optional<double> energy_mj, energy_spread_mj;
  double build_ms = 0;

  void set_unsupported(const Unsupported& unsupported);
  void set_failed(const c10::Error& error);
  void set_failed(std::string why);
  // Records an exclusion. False if there is no reason for one.
  bool exclude_if(std::string why);
  void note_clocks(const Clocks& clocks);
};
// Why no algorithm ran to its end; nullopt if one did, or if none failed. Lack of memory comes
// before the first other failure. Unsupported and excluded algorithms do not count as failures,
// since they would be so at any time.
std::optional<std::string> find_failure_of_all(const std::vector<Measurement>& measurements);
// Whether the baseline is first only because the others' times are too noisy to be compared with
// its own. Such measurements are not kept.
bool is_unstable(const std::vector<Measurement>& measurements);
const char* status_text(Measurement::Status status);
Measurement::Status status_from_text(const std::string& text);  // throws ValueError

struct TableEntry {
  std::string problem, device, constraints;
  std::vector<Measurement> measurements;  // best first, then what did not run
};

// What a ranking is wanted for, in canonical texts.
struct TableKey {
  std::string problem, device, constraints;

  bool operator<(const TableKey& other) const {
    return std::tie(problem, device, constraints) <
           std::tie(other.problem, other.device, other.constraints);
  }
};

// What the table or the store knows of a problem.
struct KnownRanking {
  std::vector<Measurement> measurements;
  std::string device;       // the one that was measured, if it is not the one that was asked for
  std::string constraints;  // of the ranking, if they differ from those asked for
  std::string heuristic;    // if not empty: the heuristic's algorithm is to run, for this reason

  // Whether it is a ranking of the very key that was asked for.
  bool is_of_key() const { return device.empty() && constraints.empty() && heuristic.empty(); }
};

// The tuning store, which is set from outside and keeps entries when the process ends. Its
// functions are called without a lock, and may be empty.
struct TuningStore {
  std::function<std::optional<KnownRanking>(const TableKey&)> find;
  // Called before a call measures the key, and if the measurement came to nothing. Both may give
  // what holds instead of a measurement.
  std::function<std::optional<KnownRanking>(const TableKey&)> claim, give_up;
  // May give what holds in the place of the entry.
  std::function<std::optional<KnownRanking>(const TableEntry&)> add;
  // The problems that have a ranking for a device under the constraints.
  std::function<std::vector<std::string>(const std::string& device, const std::string& constraints)>
      problems;
  std::function<void(const TableKey&)> record;  // of a problem that nothing was tuned for
};

namespace tuning_table {

// Asks the store for what is not in the table. What it knows of this very device under these very
// constraints is inserted.
std::optional<KnownRanking> find(const TableKey& key);
// The table's entries for a problem and a device.
std::vector<TableEntry> entries_of(const std::string& problem, const std::string& device);
// The problems whose rankings are in the table or in the store.
std::vector<std::string> problems(const std::string& device, const std::string& constraints);
void insert(TableEntry entry);
// Gives an entry to the store, and inserts it unless the store knows what holds in its place.
std::optional<KnownRanking> insert_measured(const TableEntry& entry);
// As the store's functions. What `claim` gives of this very key is inserted.
std::optional<KnownRanking> claim(const TableKey& key);
std::optional<KnownRanking> give_up(const TableKey& key);
// Tells the store of a problem that nothing was tuned for.
void record_untuned(const TableKey& key);
void set_store(TuningStore store);
// Grows with each entry that is inserted.
int64_t version();
std::vector<TableEntry> entries();
void clear();

}  // namespace tuning_table
}  // namespace torch_cudnn_ext
