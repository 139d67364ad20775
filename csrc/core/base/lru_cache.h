// A bounded map that evicts the entry whose last use is the oldest. Each thread has its own, so
// there is no lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <unordered_map>
#include <utility>

namespace torch_cudnn_ext {

template <class K, class V, class Hash>
class LruCache {
 public:
  explicit LruCache(size_t capacity) : capacity_(capacity) {}

  // Valid until the next insert or clear.
  V* find(const K& key) {
    auto found = index_.find(&key);
    if (found == index_.end()) {
      ++misses;
      return nullptr;
    }
    ++hits;
    if (found->second != entries_.begin()) {
      entries_.splice(entries_.begin(), entries_, found->second);
    }
    return &found->second->second;
  }

  V* insert(K key, V value) {
    auto found = index_.find(&key);
    if (found != index_.end()) {
      found->second->second = std::move(value);
      return &found->second->second;
    }
    if (entries_.size() >= capacity_) {
      index_.erase(&entries_.back().first);
      entries_.pop_back();
    }
    entries_.emplace_front(std::move(key), std::move(value));
    index_.emplace(&entries_.front().first, entries_.begin());
    return &entries_.front().second;
  }

  void clear() {
    index_.clear();
    entries_.clear();
  }
  size_t size() const { return entries_.size(); }
  size_t capacity() const { return capacity_; }

  int64_t hits = 0, misses = 0;

 private:
  using Entries = std::list<std::pair<K, V>>;
  struct HashPointed {
    size_t operator()(const K* key) const { return Hash()(*key); }
  };
  struct EqualPointed {
    bool operator()(const K* a, const K* b) const { return *a == *b; }
  };

  size_t capacity_;
  Entries entries_;
  std::unordered_map<const K*, typename Entries::iterator, HashPointed, EqualPointed> index_;
};

}  // namespace torch_cudnn_ext
