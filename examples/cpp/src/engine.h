// The engine: a queue, eight slots, and one token per running sequence and step. The next token is a hash of
// prompt and position. Knows nothing about gRPC, and has no lock: its owner has one.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <unordered_set>
#include <vector>

#include "enginewire/v1/output.pb.h"

constexpr uint32_t kVocabSize = 1000;
constexpr uint32_t kEos = 2;
constexpr uint32_t kContextLength = 4096;
constexpr size_t kMaxRunning = 8;
constexpr size_t kMaxWaiting = 256;

struct End {
  enginewire::v1::FinishReason why;
  std::optional<uint32_t> token;
};

struct Sequence {
  uint32_t prompt_hash = 0;
  uint32_t prompt_tokens = 0;
  uint32_t max_tokens = 0;
  uint32_t min_tokens = 0;
  std::unordered_set<uint32_t> visible_stops;
  std::unordered_set<uint32_t> hidden_stops;
  uint32_t generated = 0;
  // What the reader has not seen yet.
  std::vector<uint32_t> unread;
  std::optional<End> end;
  std::condition_variable changed;

  // Why `token`, the newest one, is the last one. Hidden stops win over visible ones.
  std::optional<End> end_at(uint32_t token) const;
};
using SequencePtr = std::shared_ptr<Sequence>;

uint32_t hash_of(const google::protobuf::RepeatedField<uint32_t>& prompt);
uint32_t next_token(uint32_t prompt_hash, uint32_t position);

class Engine {
 public:
  uint64_t steps = 0;
  uint64_t tokens_generated = 0;
  uint64_t finished = 0;
  std::list<SequencePtr> running;
  std::list<SequencePtr> waiting;

  size_t live() const { return running.size() + waiting.size(); }
  // Frees what the sequence holds. False when it had ended before.
  bool remove(const SequencePtr& sequence, std::optional<End> end);
  void step();
};
