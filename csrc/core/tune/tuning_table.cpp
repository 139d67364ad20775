#include "core/tune/tuning_table.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "core/base/enum_text.h"
#include "core/errors.h"

namespace torch_cudnn_ext {

namespace {

using Status = Measurement::Status;
constexpr EnumName<Status> kStatuses[] = {{Status::ok, "ok"},
                                          {Status::unsupported, "unsupported"},
                                          {Status::excluded, "excluded"},
                                          {Status::needs_driver, "needs a driver"},
                                          {Status::failed, "failed"},
                                          {Status::rejected, "rejected"},
                                          {Status::unstable, "unstable"}};

std::atomic<int64_t> table_version{0};
std::mutex table_mutex;
auto& table() {
  static auto* map = new std::map<TableKey, std::vector<Measurement>>();
  return *map;
}

// Shared, since another one may be set while a thread uses it.
auto& current_store() {
  static auto* store = new std::shared_ptr<const TuningStore>(std::make_shared<TuningStore>());
  return *store;
}

std::shared_ptr<const TuningStore> store_now() {
  std::lock_guard<std::mutex> lock(table_mutex);
  return current_store();
}

}  // namespace

const char* status_text(Status status) { return enum_text(kStatuses, status); }
Status status_from_text(const std::string& text) { return enum_value(kStatuses, "status", text); }

void Measurement::set_unsupported(const Unsupported& unsupported) {
  status = unsupported.needs_driver ? Status::needs_driver : Status::unsupported;
  reason = unsupported.reason;
}

void Measurement::set_failed(std::string why) {
  status = Status::failed;
  reason = std::move(why);
}

void Measurement::set_failed(const c10::Error& error) {
  set_failed(error.what_without_backtrace());
  // PyTorch's message goes on with the memory of each process at that moment.
  if (is_out_of_memory(error)) {
    reason = c10::str(kOutOfMemory, ": ", reason.substr(0, reason.find(" GPU ")));
  }
}

bool Measurement::exclude_if(std::string why) {
  if (why.empty()) return false;
  status = Status::excluded;
  reason = std::move(why);
  return true;
}

void Measurement::note_clocks(const Clocks& clocks) {
  clock_low_mhz = std::min(clock_low_mhz.value_or(clocks.sm_mhz), clocks.sm_mhz);
  clock_high_mhz = std::max(clock_high_mhz.value_or(clocks.sm_mhz), clocks.sm_mhz);
  for (const std::string& reason : clocks.slowdowns) {
    if (std::find(throttled.begin(), throttled.end(), reason) == throttled.end()) {
      throttled.push_back(reason);
    }
  }
}

std::optional<std::string> find_failure_of_all(const std::vector<Measurement>& measurements) {
  std::optional<std::string> failure;
  for (const Measurement& m : measurements) {
    if (m.status == Status::ok || m.status == Status::rejected) return std::nullopt;
    if (m.reason.find(kOutOfMemory) != std::string::npos) {
      failure = kOutOfMemory;
    } else if (m.status == Status::failed && !failure) {
      failure = c10::str(m.algorithm.text(), ": ", m.reason);
    }
  }
  return failure;
}

bool is_unstable(const std::vector<Measurement>& measurements) {
  bool baseline_first = !measurements.empty() && measurements[0].status == Status::ok &&
                        measurements[0].algorithm.is_baseline();
  return baseline_first &&
         std::any_of(measurements.begin(), measurements.end(),
                     [](const Measurement& m) { return m.status == Status::unstable; });
}

namespace tuning_table {

std::optional<KnownRanking> find(const TableKey& key) {
  {
    std::lock_guard<std::mutex> lock(table_mutex);
    if (auto found = table().find(key); found != table().end()) {
      return KnownRanking{found->second, "", "", ""};
    }
  }
  auto store = store_now();
  auto kept = store->find ? store->find(key) : std::nullopt;
  if (kept && kept->is_of_key()) {
    std::lock_guard<std::mutex> lock(table_mutex);
    // Another thread may have measured meanwhile.
    kept->measurements = table().emplace(key, kept->measurements).first->second;
  }
  return kept;
}

std::vector<TableEntry> entries_of(const std::string& problem, const std::string& device) {
  std::lock_guard<std::mutex> lock(table_mutex);
  std::vector<TableEntry> out;
  for (auto at = table().lower_bound({problem, device, ""}); at != table().end(); ++at) {
    const auto& [key, measurements] = *at;
    if (key.problem != problem || key.device != device) break;
    out.push_back({problem, device, key.constraints, measurements});
  }
  return out;
}

std::vector<std::string> problems(const std::string& device, const std::string& constraints) {
  std::vector<std::string> out;
  auto store = store_now();
  if (store->problems) out = store->problems(device, constraints);
  std::lock_guard<std::mutex> lock(table_mutex);
  for (const auto& [key, measurements] : table()) {
    if (key.device == device && key.constraints == constraints) out.push_back(key.problem);
  }
  return out;
}

void insert(TableEntry entry) {
  ++table_version;
  std::lock_guard<std::mutex> lock(table_mutex);
  table()[{entry.problem, entry.device, entry.constraints}] = std::move(entry.measurements);
}

std::optional<KnownRanking> insert_measured(const TableEntry& entry) {
  auto store = store_now();
  auto other = store->add ? store->add(entry) : std::nullopt;
  if (!other) {
    insert(entry);
  } else if (other->is_of_key()) {
    insert({entry.problem, entry.device, entry.constraints, other->measurements});
  }
  return other;
}

int64_t version() { return table_version.load(std::memory_order_relaxed); }

std::optional<KnownRanking> claim(const TableKey& key) {
  auto store = store_now();
  auto other = store->claim ? store->claim(key) : std::nullopt;
  if (other && other->is_of_key()) {
    insert({key.problem, key.device, key.constraints, other->measurements});
  }
  return other;
}

std::optional<KnownRanking> give_up(const TableKey& key) {
  auto store = store_now();
  return store->give_up ? store->give_up(key) : std::nullopt;
}

void record_untuned(const TableKey& key) {
  auto store = store_now();
  if (store->record) store->record(key);
}

void set_store(TuningStore store) {
  auto made = std::make_shared<const TuningStore>(std::move(store));
  std::lock_guard<std::mutex> lock(table_mutex);
  current_store() = std::move(made);
}

std::vector<TableEntry> entries() {
  std::lock_guard<std::mutex> lock(table_mutex);
  std::vector<TableEntry> out;
  for (const auto& [key, measurements] : table()) {
    out.push_back({key.problem, key.device, key.constraints, measurements});
  }
  return out;
}

void clear() {
  std::lock_guard<std::mutex> lock(table_mutex);
  table().clear();
}

}  // namespace tuning_table
}  // namespace torch_cudnn_ext
