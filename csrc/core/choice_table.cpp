#include "core/choice_table.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <array>
#include <map>
#include <mutex>
#include <tuple>

namespace torch_cudnn_ext {

namespace {

constexpr std::array<const char*, 6> kStatuses = {
    "ok", "unsupported", "excluded", "needs a driver", "failed", "rejected"};

using TableKey = std::tuple<std::string, std::string, std::string>;

std::mutex table_mutex;
auto& table() {
  static auto* map = new std::map<TableKey, std::vector<Measurement>>();
  return *map;
}

}  // namespace

const char* status_text(Measurement::Status status) { return kStatuses[static_cast<int>(status)]; }

Measurement::Status status_from_text(const std::string& text) {
  for (size_t i = 0; i < kStatuses.size(); ++i) {
    if (text == kStatuses[i]) return static_cast<Measurement::Status>(i);
  }
  TORCH_CHECK_VALUE(false, "status is '", text, "', wanted one of ", c10::Join(", ", kStatuses));
}

namespace choice_table {

std::optional<std::vector<Measurement>> find(const std::string& problem, const std::string& device,
                                             const std::string& constraints) {
  std::lock_guard<std::mutex> lock(table_mutex);
  auto found = table().find({problem, device, constraints});
  if (found == table().end()) return std::nullopt;
  return found->second;
}

void insert(TableEntry entry) {
  std::lock_guard<std::mutex> lock(table_mutex);
  table()[{entry.problem, entry.device, entry.constraints}] = std::move(entry.measurements);
}

std::vector<TableEntry> entries() {
  std::lock_guard<std::mutex> lock(table_mutex);
  std::vector<TableEntry> out;
  for (const auto& [key, measurements] : table()) {
    out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), measurements});
  }
  return out;
}

void clear() {
  std::lock_guard<std::mutex> lock(table_mutex);
  table().clear();
}

}  // namespace choice_table
}  // namespace torch_cudnn_ext
