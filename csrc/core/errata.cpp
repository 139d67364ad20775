#include "core/errata.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "core/capability.h"

namespace torch_cudnn_ext {

namespace {

std::vector<Erratum>& rows() {
  static auto* list = new std::vector<Erratum>();
  return *list;
}

struct Lifted {
  std::mutex mutex;
  std::set<std::string> ids;
};
Lifted& lifted() {
  static auto* state = new Lifted();
  return *state;
}

bool is_lifted(const std::string& id) {
  std::lock_guard<std::mutex> lock(lifted().mutex);
  return lifted().ids.count(id) > 0;
}

template <class T>
bool holds(const std::vector<T>& list, const T& value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}
bool holds_or_is_empty(const std::vector<std::string>& list, const std::string& value) {
  return list.empty() || holds(list, value);
}

bool is_of_place(const Erratum& row, const Device& device) {
  return row.place == Place::both || (row.place == Place::gpu) == device.has_gpu_backends();
}

bool is_on_here(const Erratum& row, const Device& device) {
  int capability = row.architectures.empty() ? 0 : capability_of(device);
  return is_of_place(row, device) && is_on(row, library_version(row.library), capability) &&
         !is_lifted(row.id);
}

std::string reason_of(const Erratum& row) {
  int64_t version = library_version(row.library);
  std::string seen = version == row.first ? ""
                                          : c10::str(", seen in ", version_text(row.first),
                                                     " and not shown to be fixed");
  return c10::str(enum_text(kLibraries, row.library), " ", version_text(version), ": ", row.text,
                  " (erratum ", row.id, seen, ")");
}

}  // namespace

bool register_errata(std::vector<Erratum> added) {
  for (Erratum& row : added) rows().push_back(std::move(row));
  return true;
}

const std::vector<Erratum>& all_errata() { return rows(); }

const Erratum& erratum_with_id(const std::string& id) {
  std::vector<std::string> known;
  for (const Erratum& row : rows()) {
    if (row.id == id) return row;
    known.push_back(row.id);
  }
  TORCH_CHECK_VALUE(false, "erratum is '", id, "', ",
                    wanted_words(id, known, "python -m torch_cudnn_ext info --errata"));
}

bool concerns(const Erratum& row, const Problem& problem, const Algorithm& algorithm,
              const Notes& notes) {
  auto has = [&](Note note) { return notes.has(note); };
  return holds(row.backends, algorithm.backend) &&
         holds(row.families, std::string(family_of(problem))) &&
         holds_or_is_empty(row.passes, pass_of(problem)) &&
         holds_or_is_empty(row.algorithms, algorithm.name) &&
         std::all_of(row.with.begin(), row.with.end(), has) &&
         std::none_of(row.without.begin(), row.without.end(), has) &&
         (!row.condition || (*row.condition)(problem, algorithm));
}

bool is_on(const Erratum& row, int64_t version, int capability) {
  return std::string_view(state_text(row, version, capability)) == "on";
}

const char* state_text(const Erratum& row, int64_t version, int capability) {
  bool other =
      capability != 0 && !row.architectures.empty() && !holds(row.architectures, capability);
  if (other) return "not on this GPU";
  if (row.fixed != 0 && version >= row.fixed) return "fixed";
  if (row.last_good != 0 && version <= row.last_good) return "not in this version";
  return "on";
}

std::optional<Unsupported> unsupported_by_erratum(const Problem& problem,
                                                  const Algorithm& algorithm, const Notes& notes,
                                                  const Device& device) {
  for (const Erratum& row : rows()) {
    bool hits = row.remedy == Remedy::unsupported && concerns(row, problem, algorithm, notes);
    if (hits && is_on_here(row, device)) return Unsupported{reason_of(row)};
  }
  return std::nullopt;
}

std::optional<Unsupported> unsupported_by_erratum(const Problem& problem,
                                                  const std::string& backend,
                                                  const Device& device) {
  Algorithm any{backend, "", {}};
  for (const Erratum& row : rows()) {
    bool hits =
        row.remedy == Remedy::unsupported && row.is_of_problem && concerns(row, problem, any, {});
    if (hits && is_on_here(row, device)) return Unsupported{reason_of(row)};
  }
  return std::nullopt;
}

void add_notes_of_errata(Notes& notes, const Problem& problem, const Algorithm& algorithm,
                         const Device& device) {
  for (const Erratum& row : rows()) {
    bool hits = row.remedy == Remedy::note && concerns(row, problem, algorithm, notes);
    if (hits && is_on_here(row, device)) notes.add(row.note);
  }
}

bool erratum_applies(const std::string& id, const Problem& problem, const Algorithm& algorithm,
                     const Device& device) {
  const Erratum& row = erratum_with_id(id);
  return concerns(row, problem, algorithm, {}) && is_on_here(row, device);
}

void lift_errata(const std::vector<std::string>& ids) {
  for (const std::string& id : ids) erratum_with_id(id);
  std::lock_guard<std::mutex> lock(lifted().mutex);
  lifted().ids = {ids.begin(), ids.end()};
}

}  // namespace torch_cudnn_ext
