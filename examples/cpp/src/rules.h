// Which requests the engine may be given. Paths are those below GenerateRequest.request. The rules of the fields
// are options of theirs in the contract, which descriptors have. This engine has none of the capabilities.
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

inline const std::set<std::string> kContainers = {"stop_conditions", "sampling_options", "output_options",
                                                  "routing", "router_config_override", "agent_context"};
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

inline void check_entries(const ew::FieldRule& rule, const std::string& path, const Message& owner,
                          const FieldDescriptor& field) {
  const auto& reflection = *owner.GetReflection();
  for (int i = 0; i < reflection.FieldSize(owner, &field); ++i) {
    const uint32_t id = rule.token_ids() ? reflection.GetRepeatedUInt32(owner, &field, i) : 0;
    if (id >= kVocabSize)
      require(false, join(path, "[", i, "]"),
              join("not in the vocabulary, got ", id, ", allowed 0..", kVocabSize - 1));
    if (rule.has_max_entry_bytes() &&
        reflection.GetRepeatedString(owner, &field, i).size() > rule.max_entry_bytes())
      require(false, join(path, "[", i, "]"), join("longer than ", rule.max_entry_bytes(), " bytes"));
  }
}

inline void check_value(const ew::FieldRule& rule, const std::string& path, const Message& owner,
                        const FieldDescriptor& field) {
  const double size = size_of(owner, field);
  const double low = rule.has_min() ? rule.min() : -kInfinity, high = rule.has_max() ? rule.max() : kInfinity;
  require(size >= low && size <= high && !(rule.above_min() && size == low), path,
          join("got ", size, ", allowed ", low, "..", high));
  if (!rule.capability().empty() && !(rule.has_neutral() && size == rule.neutral()))
    throw Failure(ew::ERROR_REASON_UNSUPPORTED, path, "this engine does not advertise " + rule.capability());
  const double most = rule.token_count() ? kVocabSize : rule.has_bound() ? rule.bound() : kInfinity;
  require(size <= most, path, join("got ", size, ", allowed at most ", most));
  if (field.is_repeated()) check_entries(rule, path, owner, field);
}

// Looks at every field of `message` that is set.
inline void check_fields(const std::string& owner, const Message& message) {
  for (const auto* field : fields_of(message)) {
    const std::string path = owner + field->name();
    if (kOtherRoles.count(path))
      throw Failure(ew::ERROR_REASON_ROLE_MISMATCH, path, "this engine is AGGREGATED");
    check_finite(path, message, *field);
    if (kContainers.count(path)) check_fields(path + ".", message.GetReflection()->GetMessage(message, field));
    else check_value(field->options().GetExtension(ew::rule), path, message, *field);
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
}
