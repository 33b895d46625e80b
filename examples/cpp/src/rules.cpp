#include "rules.h"

#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

#include "engine.h"
#include "failure.h"

using namespace enginewire::v1;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::RepeatedField;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Range {
  const char* path;
  double low;
  double high;
  bool is_above_low = false;
};
const Range kRanges[] = {
    {"stop_conditions.max_tokens", 1, kInfinity},
    {"sampling_options.n", 1, kInfinity},
    {"sampling_options.best_of", 1, kInfinity},
    {"sampling_options.temperature", 0, 100},
    {"sampling_options.top_p", 0, 1, true},
    {"sampling_options.top_k", -1, kVocabSize},
    {"sampling_options.min_p", 0, 1},
    {"sampling_options.presence_penalty", -2, 2},
    {"sampling_options.frequency_penalty", -2, 2},
    {"sampling_options.repetition_penalty", 0, 10, true},
    {"output_options.stream_interval", 1, kInfinity},
    {"routing.dp_rank", 0, 0},
};

// Capabilities this engine does not have. A field that holds its neutral value asks for nothing.
struct Gate {
  const char* path;
  std::optional<double> neutral = std::nullopt;
};
const Gate kGates[] = {
    {"multi_modal_data"},
    {"mm_processor_kwargs"},
    {"resume"},
    {"stop_conditions.stop"},
    {"stop_conditions.max_thinking_tokens"},
    {"sampling_options.n", 1},
    {"sampling_options.best_of", 1},
    {"sampling_options.use_beam_search", 0},
    {"sampling_options.length_penalty", 1},
    {"sampling_options.presence_penalty", 0},
    {"sampling_options.frequency_penalty", 0},
    {"sampling_options.repetition_penalty", 1},
    {"sampling_options.min_p", 0},
    {"sampling_options.seed"},
    {"sampling_options.guided_decoding"},
    {"sampling_options.logit_bias"},
    {"sampling_options.allowed_token_ids"},
    {"sampling_options.bad_words_token_ids"},
    {"sampling_options.include_stop_str_in_output"},
    {"output_options.logprobs"},
    {"output_options.prompt_logprobs"},
    {"output_options.logprob_token_ids"},
    {"output_options.skip_special_tokens"},
    {"output_options.formatted_prompt"},
    {"output_options.return_tokens_as_token_ids"},
    {"routing.lora_name", 0},
    {"routing.priority", 0},
    {"routing.priority_jump", 0},
};

template <typename... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
}

void refuse(bool is_wrong, ErrorReason reason, const std::string& path, const std::string& message) {
  if (is_wrong) throw Failure(reason, path, message);
}

void require(bool is_right, const std::string& path, const std::string& message) {
  refuse(!is_right, ERROR_REASON_INVALID_REQUEST, path, message);
}

// The value of a field of any type as a number, a text's being its length. Empty when it is unset.
std::optional<double> value_of(const Message& owner, const FieldDescriptor& field) {
  const auto& reflection = *owner.GetReflection();
  if (field.is_repeated()) {
    return reflection.FieldSize(owner, &field) ? std::optional<double>(NAN) : std::nullopt;
  }
  if (field.has_presence() && !reflection.HasField(owner, &field)) return std::nullopt;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(owner, &field);
    case FieldDescriptor::CPPTYPE_FLOAT: return reflection.GetFloat(owner, &field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetDouble(owner, &field);
    case FieldDescriptor::CPPTYPE_INT32: return reflection.GetInt32(owner, &field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetUInt32(owner, &field);
    case FieldDescriptor::CPPTYPE_STRING: {
      const double length = reflection.GetString(owner, &field).size();
      return length || field.has_presence() ? std::optional<double>(length) : std::nullopt;
    }
    default: return NAN;
  }
}

std::optional<double> value_at(const Message& owner, const std::string& path) {
  const size_t dot = path.find('.');
  const auto* field = owner.GetDescriptor()->FindFieldByName(path.substr(0, dot));
  if (dot == std::string::npos) return value_of(owner, *field);
  const auto& reflection = *owner.GetReflection();
  if (!reflection.HasField(owner, field)) return std::nullopt;
  return value_at(reflection.GetMessage(owner, field), path.substr(dot + 1));
}

// Every floating-point number of every sub-message is finite.
void check_numbers(const std::string& path, const Message& message) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    const std::string here = path.empty() ? field->name() : path + "." + field->name();
    const bool is_message = field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE;
    const bool is_float = field->cpp_type() == FieldDescriptor::CPPTYPE_FLOAT ||
                          field->cpp_type() == FieldDescriptor::CPPTYPE_DOUBLE;
    if (is_message && field->is_repeated()) {
      for (int i = 0; i < reflection.FieldSize(message, field); ++i) {
        check_numbers(text(here, "[", i, "]"), reflection.GetRepeatedMessage(message, field, i));
      }
    } else if (is_message) {
      check_numbers(here, reflection.GetMessage(message, field));
    } else if (is_float) {
      require(std::isfinite(*value_of(message, *field)), here, "must be finite");
    }
  }
}

void check_ids(const std::string& path, const RepeatedField<uint32_t>& ids, int most) {
  require(ids.size() <= most, path, text("too many, got ", ids.size(), ", allowed 0..", most));
  for (int i = 0; i < ids.size(); ++i) {
    const std::string wrong = text("not in the vocabulary, got ", ids[i], ", allowed 0..", kVocabSize - 1);
    if (ids[i] >= kVocabSize) throw Failure(ERROR_REASON_INVALID_REQUEST, text(path, "[", i, "]"), wrong);
  }
}

void check_prompt(const PreprocessedRequest& request) {
  refuse(request.has_prompt_embeds(), ERROR_REASON_UNSUPPORTED, "prompt_embeds",
         "needs the capability prompt_embeds");
  const uint32_t count = request.token_ids_size();
  require(count > 0, "token_ids", "must not be empty");
  refuse(count >= kContextLength, ERROR_REASON_CONTEXT_EXCEEDED, "token_ids",
         text("exceeds the context, got ", count, " tokens, allowed 1..", kContextLength - 1));
  check_ids("token_ids", request.token_ids(), kContextLength);
}

void check_token_ids(const PreprocessedRequest& request) {
  const auto& stop = request.stop_conditions();
  const auto& sampling = request.sampling_options();
  check_ids("eos_token_ids", request.eos_token_ids(), 256);
  check_ids("stop_conditions.stop_token_ids", stop.stop_token_ids(), 256);
  check_ids("stop_conditions.stop_token_ids_visible", stop.stop_token_ids_visible(), 256);
  check_ids("stop_conditions.stop_token_ids_hidden", stop.stop_token_ids_hidden(), 256);
  check_ids("sampling_options.allowed_token_ids", sampling.allowed_token_ids(), 65536);
  check_ids("output_options.logprob_token_ids", request.output_options().logprob_token_ids(), 256);
  for (int i = 0; i < sampling.logit_bias_size(); ++i) {
    const std::string path = text("sampling_options.logit_bias[", i, "].token_id");
    require(sampling.logit_bias(i).token_id() < kVocabSize, path, "not in the vocabulary");
  }
  for (int i = 0; i < sampling.bad_words_token_ids_size(); ++i) {
    const std::string path = text("sampling_options.bad_words_token_ids[", i, "].token_ids");
    check_ids(path, sampling.bad_words_token_ids(i).token_ids(), 8192);
  }
}

void check_lengths(const PreprocessedRequest& request) {
  const auto& stop = request.stop_conditions();
  const char* const path = "stop_conditions.min_tokens";
  require(!stop.has_max_tokens() || stop.min_tokens() <= stop.max_tokens(), path,
          text("above max_tokens, got ", stop.min_tokens(), ", allowed 0..", stop.max_tokens()));
  const uint32_t room = kContextLength - request.token_ids_size();
  refuse(stop.min_tokens() > room, ERROR_REASON_CONTEXT_EXCEEDED, path,
         text("exceeds the context, got ", stop.min_tokens(), ", allowed 0..", room));
}

// At most 64 KiB and 64 levels, and it looks like an object. This engine forwards it to nobody.
void check_json(const std::string& path, const std::string& json) {
  require(json.size() <= 65536, path, "too long, allowed 0..65536 bytes");
  int depth = 0;
  bool is_in_text = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (is_in_text && json[i] == '\\') ++i;
    else if (json[i] == '"') is_in_text = !is_in_text;
    else if (!is_in_text && (json[i] == '{' || json[i] == '[')) ++depth;
    else if (!is_in_text && (json[i] == '}' || json[i] == ']')) --depth;
    require(depth <= 64 && depth >= 0, path, "nested too deeply, allowed 0..64 levels");
  }
  const size_t first = json.find_first_not_of(" \t\r\n");
  require(json.empty() || (depth == 0 && !is_in_text && first != std::string::npos && json[first] == '{'),
          path, "must be a JSON object");
}

void check_bytes(const PreprocessedRequest& request) {
  require(request.annotations_size() <= 64, "annotations",
          text("too many, got ", request.annotations_size(), ", allowed 0..64"));
  for (int i = 0; i < request.annotations_size(); ++i) {
    require(request.annotations(i).size() <= 1024, text("annotations[", i, "]"),
            "too long, allowed 0..1024 bytes");
  }
  check_json("extra_args", request.extra_args());
  check_json("router_config_override.extra", request.router_config_override().extra());
  check_json("agent_context.extra", request.agent_context().extra());
}

void check_request_id(const std::string& id) {
  const bool is_name =
      id.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:-") ==
      std::string::npos;
  require(is_name && !id.empty() && id.size() <= 128, "request_id",
          "not a valid id, allowed 1 to 128 characters of [A-Za-z0-9._:-]");
}

}  // namespace

void check(const GenerateRequest& generate) {
  check_request_id(generate.request_id());
  if (generate.client_revision() > kRevision) {
    const std::string served = std::to_string(kRevision);
    throw Failure(ERROR_REASON_REVISION_MISMATCH, "client_revision",
                  text("not served, got ", generate.client_revision(), ", allowed ", served),
                  {{"minimum_client_revision", served}, {"maximum_client_revision", served}});
  }
  require(generate.has_request(), "request", "must be set");
  const PreprocessedRequest& request = generate.request();
  refuse(!request.model().empty() && request.model() != kModel, ERROR_REASON_MODEL_NOT_FOUND, "model",
         "no such model here");
  check_numbers("", request);
  for (const char* field : {"prefill_result", "bootstrap_info"}) {
    const bool is_foreign = value_at(request, field) && !request.is_probe();
    refuse(is_foreign, ERROR_REASON_ROLE_MISMATCH, field, "this engine is AGGREGATED");
  }
  check_prompt(request);
  for (const auto& [path, low, high, is_above_low] : kRanges) {
    const auto value = value_at(request, path);
    const bool is_inside = !value || (*value >= low && *value <= high && !(is_above_low && *value == low));
    require(is_inside, path,
            text("out of range, got ", value.value_or(0), ", allowed ", is_above_low ? "above " : "", low,
                 " to ", high));
  }
  check_token_ids(request);
  for (const auto& [path, neutral] : kGates) {
    const auto value = value_at(request, path);
    refuse(value && value != neutral, ERROR_REASON_UNSUPPORTED, path,
           "this engine does not advertise the capability");
  }
  check_lengths(request);
  check_bytes(request);
}
