#include "engine.h"

#include <algorithm>

using namespace enginewire::v1;

namespace {

constexpr uint32_t kFirstPlainToken = 3;

bool take(std::list<SequencePtr>& sequences, const SequencePtr& sequence) {
  const auto found = std::find(sequences.begin(), sequences.end(), sequence);
  if (found == sequences.end()) return false;
  sequences.erase(found);
  return true;
}

}  // namespace

// FNV-1a over the prompt, then murmur's finalizer over hash and position.
uint32_t hash_of(const google::protobuf::RepeatedField<uint32_t>& prompt) {
  uint32_t hash = 2166136261u;
  for (uint32_t id : prompt) hash = (hash ^ id) * 16777619u;
  return hash;
}

uint32_t next_token(uint32_t prompt_hash, uint32_t position) {
  uint32_t hash = prompt_hash + position * 0x9e3779b9u;
  hash = (hash ^ (hash >> 16)) * 0x85ebca6bu;
  hash = (hash ^ (hash >> 13)) * 0xc2b2ae35u;
  return kFirstPlainToken + (hash ^ (hash >> 16)) % (kVocabSize - kFirstPlainToken);
}

std::optional<End> Sequence::end_at(uint32_t token) const {
  if (generated >= min_tokens) {
    if (hidden_stops.count(token)) return End{FINISH_REASON_EOS, {}};
    if (visible_stops.count(token)) return End{FINISH_REASON_STOP, token};
  }
  if (generated >= max_tokens) return End{FINISH_REASON_LENGTH, {}};
  return std::nullopt;
}

bool Engine::remove(const SequencePtr& sequence, std::optional<End> end) {
  if (!take(running, sequence) && !take(waiting, sequence)) return false;
  finished += 1;
  sequence->end = end;
  sequence->changed.notify_one();
  return true;
}

void Engine::step() {
  while (running.size() < kMaxRunning && !waiting.empty()) {
    running.splice(running.end(), waiting, waiting.begin());
  }
  if (!running.empty()) steps += 1;
  const std::vector<SequencePtr> batch(running.begin(), running.end());
  for (const SequencePtr& sequence : batch) {
    const uint32_t token = next_token(sequence->prompt_hash, sequence->generated);
    sequence->generated += 1;
    tokens_generated += 1;
    sequence->unread.push_back(token);
    sequence->changed.notify_one();
    if (const auto end = sequence->end_at(token)) remove(sequence, end);
  }
}
