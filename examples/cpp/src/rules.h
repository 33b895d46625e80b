// Which requests the engine may be given. Paths are those below GenerateRequest.request. A field that no table
// names is a capability this engine does not have.
#pragma once

#include <google/protobuf/reflection.h>

#include <cmath>
#include <sstream>

#include "engine.h"

inline const char* const kModel = "hash";
constexpr uint32_t kRevision = 2;
constexpr uint32_t kOldestRevision = 1;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// Of a list, a text and bytes the length counts. Lists of numbers are token ids.
inline const std::map<std::string, std::pair<double, double>> kRanges = {
    {"token_ids", {0, kInfinity}},
    {"eos_token_ids", {0, 256}},
    {"stop_conditions.max_tokens", {1, kInfinity}},
    {"stop_conditions.min_tokens", {0, kInfinity}},
    {"stop_conditions.stop_token_ids", {0, 256}},
    {"stop_conditions.stop_token_ids_visible", {0, 256}},
    {"stop_conditions.stop_token_ids_hidden", {0, 256}},
    {"sampling_options.n", {1, kInfinity}},
    {"sampling_options.temperature", {0, 100}},
    {"sampling_options.top_p", {std::numeric_limits<float>::denorm_min(), 1}},
    {"sampling_options.top_k", {-1, kVocabSize}},
    {"output_options.stream_interval", {1, kInfinity}},
    {"routing.dp_rank", {0, 0}},
    {"annotations", {0, 64}},
    {"extra_args", {0, 65536}},
};

// Fields of other capabilities, and the value with which they ask for nothing.
inline const std::map<std::string, double> kNeutral = {
    {"sampling_options.n", 1},
    {"sampling_options.best_of", 1},
    {"sampling_options.presence_penalty", 0},
    {"sampling_options.frequency_penalty", 0},
    {"sampling_options.repetition_penalty", 1},
    {"sampling_options.min_p", 0},
    {"sampling_options.use_beam_search", 0},
    {"sampling_options.length_penalty", 1},
    {"routing.lora_name", 0},
    {"routing.priority", 0},
    {"routing.priority_jump", 0},
};

inline const std::set<std::string> kAnything = {
    "model", "stop_conditions.ignore_eos", "is_probe", "cache_salt", "bypass_prefix_cache",
    // For routers and callers:
    "mm_routing_info", "mdc_sum", "router_config_override", "migration_link", "router", "agent_context",
    "request_timestamp_ms", "routing.backend_instance_id", "routing.prefill_worker_id",
    "routing.decode_worker_id", "routing.prefill_dp_rank", "routing.expected_output_tokens",
    "routing.allowed_worker_ids", "routing.routing_constraints", "routing.session_control",
    "routing.routing_key"};
inline const std::set<std::string> kContainers = {"stop_conditions", "sampling_options", "output_options",
                                                  "routing"};
inline const std::set<std::string> kOtherRoles = {"prefill_result", "bootstrap_info"};

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

inline void require(bool is_right, const std::string& path, const std::string& text) {
  if (!is_right) throw Failure(ew::ERROR_REASON_INVALID_REQUEST, path, text);
}

inline std::vector<const FieldDescriptor*> fields_of(const Message& message) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  return fields;
}

// A number, or the length of a list, a text and bytes.
inline double size_of(const Message& owner, const FieldDescriptor& field) {
  const auto& reflection = *owner.GetReflection();
  if (field.is_repeated()) return reflection.FieldSize(owner, &field);
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(owner, &field);
    case FieldDescriptor::CPPTYPE_FLOAT: return reflection.GetFloat(owner, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetDouble(owner, &field);
    case FieldDescriptor::CPPTYPE_INT32: return reflection.GetInt32(owner, &field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetUInt32(owner, &field);
    case FieldDescriptor::CPPTYPE_STRING: return reflection.GetString(owner, &field).size();
    default: return 0;
  }
}

// No number in the field, however deep, is NaN or an infinity.
inline void check_finite(const std::string& path, const Message& owner, const FieldDescriptor& field) {
  const auto& reflection = *owner.GetReflection();
  if (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE)
    return require(std::isfinite(size_of(owner, field)), path, "must be finite");
  const int count = field.is_repeated() ? reflection.FieldSize(owner, &field) : 1;
  for (int i = 0; i < count; ++i) {
    const Message& inner = field.is_repeated() ? reflection.GetRepeatedMessage(owner, &field, i)
                                               : reflection.GetMessage(owner, &field);
    const std::string here = field.is_repeated() ? join(path, "[", i, "].") : path + ".";
    for (const auto* part : fields_of(inner)) check_finite(here + part->name(), inner, *part);
  }
}

inline void check_ids(const std::string& path, const Message& owner, const FieldDescriptor& field) {
  const auto ids = owner.GetReflection()->GetRepeatedFieldRef<uint32_t>(owner, &field);
  for (int i = 0; i < ids.size(); ++i)
    require(ids.Get(i) < kVocabSize, join(path, "[", i, "]"),
            join("not in the vocabulary, got ", ids.Get(i), ", allowed 0..", kVocabSize - 1));
}

inline void check_value(const std::string& path, const Message& owner, const FieldDescriptor& field) {
  const double size = size_of(owner, field);
  const auto range = kRanges.find(path);
  if (range != kRanges.end()) {
    const auto [low, high] = range->second;
    require(size >= low && size <= high, path, join("got ", size, ", allowed ", low, "..", high));
    if (field.is_repeated() && field.cpp_type() == FieldDescriptor::CPPTYPE_UINT32)
      check_ids(path, owner, field);
  }
  const auto neutral = kNeutral.find(path);
  const bool is_known = neutral != kNeutral.end() ? size == neutral->second
                                                  : range != kRanges.end() || kAnything.count(path);
  if (!is_known)
    throw Failure(ew::ERROR_REASON_UNSUPPORTED, path, "this engine does not advertise the capability");
}

// Looks at every field of `message` that is set.
inline void check_fields(const std::string& owner, const Message& message) {
  for (const auto* field : fields_of(message)) {
    const std::string path = owner + field->name();
    check_finite(path, message, *field);
    if (kContainers.count(path)) check_fields(path + ".", message.GetReflection()->GetMessage(message, field));
    else if (kOtherRoles.count(path))
      throw Failure(ew::ERROR_REASON_ROLE_MISMATCH, path, "this engine is AGGREGATED");
    else check_value(path, message, *field);
  }
}

// Throws a Failure that names the field, or returns.
inline void check(const ew::GenerateRequest& generate) {
  const auto& id = generate.request_id();
  const char* const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
  require(!id.empty() && id.size() <= 128 && id.find_first_not_of(letters) == std::string::npos,
          "request_id", "not 1 to 128 of A-Z a-z 0-9 . _ : -");
  if (generate.client_revision() > kRevision) {
    const std::string served = std::to_string(kRevision);
    throw Failure(ew::ERROR_REASON_REVISION_MISMATCH, "client_revision",
                  join("not served, got ", generate.client_revision(), ", allowed 0..", served),
                  {{"minimum_client_revision", std::to_string(kOldestRevision)}, {"maximum_client_revision", served}});
  }
  require(generate.has_request(), "request", "must be set");
  const auto& request = generate.request();
  check_fields("", request);
  if (!request.model().empty() && request.model() != kModel)
    throw Failure(ew::ERROR_REASON_MODEL_NOT_FOUND, "model", "no such model here");
  const uint32_t count = request.token_ids_size();
  require(count > 0, "token_ids", "must not be empty");
  if (count >= kContextLength)
    throw Failure(ew::ERROR_REASON_CONTEXT_EXCEEDED, "token_ids",
                  join(count, " of at most ", kContextLength - 1));
  const auto& stop = request.stop_conditions();
  const uint32_t room = kContextLength - count;
  const char* const path = "stop_conditions.min_tokens";
  require(!stop.has_max_tokens() || stop.min_tokens() <= stop.max_tokens(), path,
          join("above max_tokens, got ", stop.min_tokens()));
  if (stop.min_tokens() > room)
    throw Failure(ew::ERROR_REASON_CONTEXT_EXCEEDED, path,
                  join("got ", stop.min_tokens(), ", allowed 0..", room));
  for (int i = 0; i < request.annotations_size(); ++i)
    require(request.annotations(i).size() <= 1024, join("annotations[", i, "]"), "longer than 1024 bytes");
}
