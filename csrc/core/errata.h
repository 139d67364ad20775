// Errata: known defects of the libraries whose kernels run. Each is a row of data that says what it
// concerns, in which versions it is, and what is done about it. Knows no library and no family:
// whoever knows a defect registers its row.
//
// A guard stays on until a run has shown that a version is free of the defect. A row applies to all
// versions from the one after `last_good` on, and ends before `fixed`. If `last_good` is 0,
// versions older than `first` count as affected too, since nobody has looked at them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "core/algorithm.h"
#include "core/device.h"
#include "core/library_versions.h"
#include "core/plan.h"
#include "problems/problem.h"

namespace torch_cudnn_ext {

// For questions that are the same for all GPUs.
inline constexpr Device kAnyGpu{Device::Kind::cuda, 0};

// What is done about an erratum.
enum class Remedy : uint8_t {
  unsupported,  // the algorithm does not support the problem
  note,         // the plan has a note, by which policies exclude it
  workaround,   // the plan avoids it
  last          // the untuned order tries the algorithm last
};
inline constexpr EnumName<Remedy> kRemedies[] = {{Remedy::unsupported, "unsupported"},
                                                 {Remedy::note, "note"},
                                                 {Remedy::workaround, "worked around"},
                                                 {Remedy::last, "tried last"}};

enum class Place : uint8_t { gpu, cpu, both };
inline constexpr EnumName<Place> kPlaces[] = {
    {Place::gpu, "GPU"}, {Place::cpu, "CPU"}, {Place::both, "GPU and CPU"}};

// A run that shows an erratum once its row is lifted.
struct Reproduction {
  std::string problem, algorithm;
  // "" for random numbers; "-inf", "inf" or "nan" for data that holds nothing else; "one inf" for
  // one such element in the middle of random data; "grid=nan" for the tensor of one role.
  std::string inputs;
};

struct Erratum {
  using Condition = std::function<bool(const Problem&, const Algorithm&)>;

  std::string id;
  Library library = Library::cudnn;
  std::vector<std::string> backends, families;
  std::vector<std::string> passes;      // empty: all
  std::vector<std::string> algorithms;  // their names; empty: all
  std::vector<Note> with, without;      // notes that the algorithm has, and does not have
  std::optional<Condition> condition;   // of the problem, and of the algorithm's options
  bool is_of_problem = true;            // holds for all algorithms of the backends alike
  Place place = Place::gpu;
  std::vector<int> architectures;    // compute capabilities, such as 90; empty: all
  int64_t first = 0;                 // the version that it was first seen in
  int64_t last_good = 0, fixed = 0;  // versions that were shown to be without it; 0: none
  Remedy remedy = Remedy::unsupported;
  Note note = Note::kCount;  // if that is the remedy
  std::string text;          // what happens
  // Begins with what was seen, such as "wrong values" or "hangs", and says on which GPU.
  std::string evidence;
  // Runs that were seen to show it, or are like those. One of them suffices. Empty if no single run
  // shows it.
  std::vector<Reproduction> reproductions;

  // --- setters that chain

  // What the algorithms are, of one backend. A second call adds a backend.
  Erratum& of(std::string backend, std::vector<std::string> names = {}) {
    backends.push_back(std::move(backend));
    algorithms.insert(algorithms.end(), names.begin(), names.end());
    is_of_problem &= algorithms.empty();
    return *this;
  }
  Erratum& having(Note note) {
    with.push_back(note);
    is_of_problem = false;
    return *this;
  }
  Erratum& lacking(Note note) {
    without.push_back(note);
    is_of_problem = false;
    return *this;
  }
  Erratum& in(std::vector<std::string> names) {
    passes = std::move(names);
    return *this;
  }
  Erratum& on(Place where) {
    place = where;
    return *this;
  }
  Erratum& unsupported(std::string what) { return does(Remedy::unsupported, std::move(what)); }
  Erratum& works_around(std::string what) { return does(Remedy::workaround, std::move(what)); }
  Erratum& comes_last(std::string what) { return does(Remedy::last, std::move(what)); }
  Erratum& adds(Note added, std::string what) {
    note = added;
    return does(Remedy::note, std::move(what));
  }
  Erratum& seen(int64_t version, std::string how) {
    first = version;
    evidence = std::move(how);
    return *this;
  }
  Erratum& not_in(int64_t version) {
    last_good = version;
    return *this;
  }
  Erratum& fixed_in(int64_t version) {
    fixed = version;
    return *this;
  }
  // A second call adds a run.
  Erratum& reproduced_by(std::string problem, std::string algorithm, std::string inputs = "") {
    reproductions.push_back({std::move(problem), std::move(algorithm), std::move(inputs)});
    return *this;
  }

 private:
  Erratum& does(Remedy what, std::string happens) {
    remedy = what;
    text = std::move(happens);
    return *this;
  }
};

// A row of one family. The condition takes its problem, or its problem and the algorithm.
template <class P, class Condition>
Erratum erratum(std::string id, Condition condition) {
  Erratum row;
  row.id = std::move(id);
  row.families = {P::kFamily};
  if constexpr (std::is_invocable_v<Condition, const P&, const Algorithm&>) {
    row.is_of_problem = false;
    row.condition = [=](const Problem& p, const Algorithm& a) {
      return condition(std::get<P>(p), a);
    };
  } else {
    row.condition = [=](const Problem& p, const Algorithm&) { return condition(std::get<P>(p)); };
  }
  return row;
}
// Of all problems of the family.
template <class P>
Erratum erratum(std::string id) {
  Erratum row;
  row.id = std::move(id);
  row.families = {P::kFamily};
  return row;
}

// Returns true, so that a constant at namespace scope registers rows. Rows of one family are asked
// in their order.
bool register_errata(std::vector<Erratum> rows);
const std::vector<Erratum>& all_errata();
const Erratum& erratum_with_id(const std::string& id);  // throws ValueError

// Whether a row is about this algorithm on this problem, in whatever version.
bool concerns(const Erratum& row, const Problem& problem, const Algorithm& algorithm,
              const Notes& notes);
// Whether a row is on for a version of its library and a GPU of this compute capability (0: any).
bool is_on(const Erratum& row, int64_t version, int capability);
// "on", "fixed", "not in this version" or "not on this GPU".
const char* state_text(const Erratum& row, int64_t version, int capability);

// Why an erratum makes the algorithm unsupported; nullopt if none does. Asked when plans are built.
std::optional<Unsupported> unsupported_by_erratum(const Problem& problem,
                                                  const Algorithm& algorithm, const Notes& notes,
                                                  const Device& device);
// The same for all algorithms of a backend alike, before any is listed.
std::optional<Unsupported> unsupported_by_erratum(const Problem& problem,
                                                  const std::string& backend, const Device& device);
void add_notes_of_errata(Notes& notes, const Problem& problem, const Algorithm& algorithm,
                         const Device& device);
// Whether the row with this id applies, for what is not unsupported and not a note.
bool erratum_applies(const std::string& id, const Problem& problem, const Algorithm& algorithm,
                     const Device& device);

// Takes guards off, to see whether a defect is still there; an empty list puts all on again.
void lift_errata(const std::vector<std::string>& ids);  // throws ValueError

}  // namespace torch_cudnn_ext
