#include "core/base/text.h"

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cctype>

namespace torch_cudnn_ext {

namespace {

constexpr size_t kFewWords = 16;  // a message lists all words up to this number
constexpr size_t kNearest = 5;

bool is_of_numbers(char c) {
  return (c >= '0' && c <= '9') || std::string_view(",.+-e").find(c) != std::string_view::npos;
}

// The word in lower case, with one star for each run of stars.
std::string as_pattern(std::string_view word) {
  std::string out = in_lower_case(word);
  auto end =
      std::unique(out.begin(), out.end(), [](char a, char b) { return a == '*' && b == '*'; });
  out.erase(end, out.end());
  return out;
}

// The number of letters to insert, remove, change or swap with their neighbour. A star matches any
// text.
size_t distance_of(const std::string& word, const std::string& text) {
  std::vector<size_t> before_last(text.size() + 1), last = before_last, row = before_last;
  for (size_t j = 0; j <= text.size(); ++j) last[j] = j;
  for (size_t i = 1; i <= word.size(); ++i) {
    bool star = word[i - 1] == '*';
    row[0] = last[0] + (star ? 0 : 1);
    for (size_t j = 1; j <= text.size(); ++j) {
      bool same = word[i - 1] == text[j - 1] || word[i - 1] == '?';
      if (star) {
        row[j] = std::min(last[j], row[j - 1]);
        continue;
      }
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (same ? 0 : 1)});
      bool exchanged = i > 1 && j > 1 && word[i - 1] == text[j - 2] && word[i - 2] == text[j - 1];
      if (exchanged) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[text.size()];
}

}  // namespace

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  for (char& c : out) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return out;
}

void check_length(std::string_view what, std::string_view text, size_t most) {
  constexpr size_t kShown = 40;
  TORCH_CHECK_VALUE(text.size() <= most, what, ": got ", text.size(),
                    " characters that begin with '", text.substr(0, kShown), "', wanted at most ",
                    most);
}

bool glob_matches(std::string_view glob, std::string_view text) {
  size_t g = 0, t = 0;
  size_t after_star = std::string_view::npos, text_of_star = 0;  // of the last star so far
  while (t < text.size()) {
    if (g < glob.size() && glob[g] == '*') {
      after_star = ++g;
      text_of_star = t;
    } else if (g < glob.size() && (glob[g] == '?' || glob[g] == text[t])) {
      ++g;
      ++t;
    } else if (after_star != std::string_view::npos) {  // the star matches one character more
      g = after_star;
      t = ++text_of_star;
    } else {
      return false;
    }
  }
  return glob.find_first_not_of('*', g) == std::string_view::npos;
}

bool glob_can_match(std::string_view glob, std::string_view form) {
  struct Item {
    char letter;
    bool numbers, repeats;
  };
  std::vector<Item> items;
  for (char c : form) {
    bool numbers = c == kNumbers;
    items.push_back({c, numbers, false});
    if (numbers) items.push_back({c, true, true});
  }
  // can[j]: whether the rest of the glob matches a text of the items from j on.
  std::vector<char> can(items.size() + 1, 0), next;
  can[items.size()] = 1;
  for (size_t j = items.size(); j-- > 0;) can[j] = items[j].repeats && can[j + 1];
  for (size_t i = glob.size(); i-- > 0;) {
    next.assign(items.size() + 1, 0);
    bool star = glob[i] == '*';
    next[items.size()] = star && can[items.size()];
    for (size_t j = items.size(); j-- > 0;) {
      const Item& item = items[j];
      if (star) {
        next[j] = can[j] || next[j + 1];
        continue;
      }
      bool takes =
          glob[i] == '?' || (item.numbers ? is_of_numbers(glob[i]) : glob[i] == item.letter);
      next[j] = (takes && can[item.repeats ? j : j + 1]) || (item.repeats && next[j + 1]);
    }
    can.swap(next);
  }
  return can[0] != 0;
}

std::vector<std::string> nearest_words(std::string_view word,
                                       const std::vector<std::string>& known) {
  std::string pattern = as_pattern(word);
  bool has_stars = pattern.find('*') != std::string::npos;
  size_t letters = pattern.size() - std::count(pattern.begin(), pattern.end(), '*');
  size_t most = std::max<size_t>(1, (letters + 1) / 3);
  std::vector<std::pair<size_t, std::string>> found;
  for (const std::string& candidate : known) {
    std::string text = in_lower_case(candidate);
    size_t distance = most + 1;
    bool may_be_near =
        text.size() + most >= letters && (has_stars || text.size() <= letters + most);
    if (may_be_near) distance = distance_of(pattern, text);
    bool is_part = letters >= 3 && text.find(pattern) != std::string::npos;
    auto differ = std::mismatch(pattern.begin(), pattern.end(), text.begin(), text.end());
    auto in_common = static_cast<size_t>(differ.first - pattern.begin());
    bool begins_alike = in_common >= 4 && in_common * 3 >= letters;
    if (is_part || begins_alike) distance = std::min(distance, most);
    if (distance <= most && !text.empty()) found.emplace_back(distance, candidate);
  }
  std::stable_sort(found.begin(), found.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> out;
  for (auto& [distance, text] : found) {
    bool is_new = std::find(out.begin(), out.end(), text) == out.end();
    if (out.size() < kNearest && distance <= found[0].first + 2 && is_new) out.push_back(text);
  }
  return out;
}

std::string wanted_words(std::string_view word, const std::vector<std::string>& known,
                         std::string_view all) {
  std::vector<std::string> near = nearest_words(word, known);
  std::string said = near.empty() ? "" : c10::str("the nearest: ", c10::Join(", ", near));
  if (known.size() > kFewWords) {
    return c10::str("wanted one of ", known.size(), " words", said.empty() ? "" : ", ", said,
                    "; all: ", all);
  }
  bool is_seen = known.size() <= kNearest || said.empty();
  return c10::str(known.size() == 1 ? "wanted " : "wanted one of ", c10::Join(", ", known),
                  is_seen ? "" : "; ", is_seen ? "" : said);
}

}  // namespace torch_cudnn_ext
