// Which requests an engine may be given. All that differs between engines is read from the EngineConfig that they
// advertise; the rules of the fields are options of theirs in the contract. Paths are those below
// GenerateRequest.request. What several fields say together, such as `best_of` and `n`, and what is in a list of a
// capability, is left to the engine that has the capability.
#pragma once

#include <google/protobuf/reflection.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "enginewire/failure.h"
#include "enginewire/info.h"
#include "enginewire/v1/engine_service.pb.h"

namespace enginewire {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

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

// The walk over a request.
class Rules {
 public:
  explicit Rules(const v1::EngineConfig& config) : config_(config) {}

  // Holds every field of `message` that is set against its rule. No number, however deep, is NaN or an infinity.
  void check_fields(const std::string& prefix, const Message& message) const {
    const auto& reflection = *message.GetReflection();
    std::vector<const FieldDescriptor*> fields;
    reflection.ListFields(message, &fields);
    for (const auto* field : fields) {
      const std::string path = prefix + field->name();
      check_role(path);
      if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
        if (!std::isfinite(size_of(message, *field))) throw invalid(path, "must be finite");
      } else if (!field->is_repeated()) {
        check_fields(path + ".", reflection.GetMessage(message, field));
      } else {
        for (int i = 0; i < reflection.FieldSize(message, field); ++i)
          check_fields(join(path, "[", i, "]."), reflection.GetRepeatedMessage(message, field, i));
      }
      check_value(field->options().GetExtension(v1::rule), path, message, *field);
    }
  }

 private:
  void check_role(const std::string& path) const {
    const bool can_continue = config_.role() == v1::ENGINE_ROLE_DECODE;
    const bool can_meet = can_continue || config_.role() == v1::ENGINE_ROLE_PREFILL;
    if ((path == "prefill_result" && !can_continue) || (path == "bootstrap_info" && !can_meet))
      throw Failure(v1::ERROR_REASON_ROLE_MISMATCH, path, "this engine is of another role");
  }

  void check_value(const v1::FieldRule& rule, const std::string& path, const Message& owner,
                   const FieldDescriptor& field) const {
    const double size = size_of(owner, field);
    const double low = rule.has_min() ? rule.min() : -kInfinity, high = rule.has_max() ? rule.max() : kInfinity;
    if (size < low || size > high || (rule.above_min() && size == low))
      throw invalid(path, "got ", size, ", allowed ", low, "..", high);
    if (!rule.capability().empty() && !(rule.has_neutral() && size == rule.neutral()) && !has(rule.capability()))
      throw Failure(v1::ERROR_REASON_UNSUPPORTED, path, "this engine does not advertise " + rule.capability());
    if (size > most(rule)) throw invalid(path, "got ", size, ", allowed at most ", most(rule));
    if (field.is_repeated()) return check_entries(rule, path, owner, field);
    if (rule.token_ids() && size >= config_.vocab_size()) throw not_in_vocabulary(path, size);
  }

  void check_entries(const v1::FieldRule& rule, const std::string& path, const Message& owner,
                     const FieldDescriptor& field) const {
    const auto& reflection = *owner.GetReflection();
    for (int i = 0; i < reflection.FieldSize(owner, &field); ++i) {
      const uint32_t id = rule.token_ids() ? reflection.GetRepeatedUInt32(owner, &field, i) : 0;
      if (rule.token_ids() && id >= config_.vocab_size()) throw not_in_vocabulary(join(path, "[", i, "]"), id);
      if (rule.has_max_entry_bytes() &&
          reflection.GetRepeatedString(owner, &field, i).size() > rule.max_entry_bytes())
        throw invalid(join(path, "[", i, "]"), "longer than ", rule.max_entry_bytes(), " bytes");
    }
  }

  Failure not_in_vocabulary(const std::string& path, uint32_t id) const {
    return invalid(path, "not in the vocabulary, got ", id, ", allowed 0..", config_.vocab_size() - 1);
  }

  bool has(const std::string& capability) const {
    const auto* field = v1::Capabilities::descriptor()->FindFieldByName(capability);
    return field && size_of(config_.capabilities(), *field) > 0;
  }

  // The largest size that is allowed here: an engine may have set another limit than the contract's bound.
  double most(const v1::FieldRule& rule) const {
    const auto& limits = config_.limits();
    const auto* limit = limits.GetDescriptor()->FindFieldByName(rule.limit());
    double most = rule.has_bound() ? rule.bound() : kInfinity;
    if (limit && limits.GetReflection()->HasField(limits, limit)) most = size_of(limits, *limit);
    return rule.token_count() ? std::min<double>(most, config_.vocab_size()) : most;
  }

  const v1::EngineConfig& config_;
};

// Whether a request may name the model so. Which adapters are loaded is for an engine with that capability to know.
inline bool is_served(const std::string& model, const v1::EngineConfig& config) {
  const auto& aliases = config.aliases();
  return model.empty() || model == config.model() || model == config.served_model_name() ||
         std::find(aliases.begin(), aliases.end(), model) != aliases.end() || config.capabilities().lora();
}

inline void check_length(const v1::PreprocessedRequest& request, const v1::EngineConfig& config) {
  const auto& stop = request.stop_conditions();
  const char* const path = "stop_conditions.min_tokens";
  const uint32_t count = request.token_ids_size(), window = window_of(config);
  const uint32_t limit = config.limits().has_max_prompt_tokens() ? config.limits().max_prompt_tokens() : window;
  const uint32_t longest = std::min(limit, window - 1);
  if (count == 0 && !request.has_prompt_embeds()) throw invalid("token_ids", "must not be empty");
  if (count > longest)
    throw Failure(v1::ERROR_REASON_CONTEXT_EXCEEDED, "token_ids", join(count, " of at most ", longest));
  if (stop.has_max_tokens() && stop.min_tokens() > stop.max_tokens())
    throw invalid(path, "above max_tokens, got ", stop.min_tokens());
  if (stop.min_tokens() > window - count)
    throw Failure(v1::ERROR_REASON_CONTEXT_EXCEEDED, path,
                  join("got ", stop.min_tokens(), ", allowed 0..", window - count));
}

// These throw a Failure that names the field, or return.
inline void check(const v1::GenerateRequest& generate, const v1::EngineConfig& config) {
  const auto& id = generate.request_id();
  const char* const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-";
  if (id.empty() || id.size() > 128 || id.find_first_not_of(letters) != std::string::npos)
    throw invalid("request_id", "not 1 to 128 of A-Z a-z 0-9 . _ : -");
  if (generate.client_revision() > kRevision) {
    const std::string oldest = std::to_string(kOldestRevision), newest = std::to_string(kRevision);
    throw Failure(v1::ERROR_REASON_REVISION_MISMATCH, "client_revision",
                  join("not served, got ", generate.client_revision(), ", allowed 0..", newest),
                  {{"minimum_client_revision", oldest}, {"maximum_client_revision", newest}});
  }
  if (!generate.has_request()) throw invalid("request", "must be set");
  const auto& request = generate.request();
  Rules(config).check_fields("", request);
  if (!is_served(request.model(), config))
    throw Failure(v1::ERROR_REASON_MODEL_NOT_FOUND, "model", "no such model here");
  check_length(request, config);
}

inline void check(const v1::AbortRequest& request) {
  const int most = 16384;  // Outcomes that fit into one answer.
  if (request.all() != request.request_ids().empty())
    throw invalid("request_ids", "exactly one of ids and all is needed");
  if (request.request_ids_size() > most) throw invalid("request_ids", "too many, allowed at most ", most);
}

}  // namespace enginewire
