#include "service.h"

#include <google/protobuf/util/message_differencer.h>

#include "failure.h"
#include "rules.h"

using namespace enginewire::v1;
using grpc::ServerContext;
using RpcStatus = grpc::Status;

namespace {

const char* const kSchemaDigest = "04fcb1bfd9466351c639afd6f855c64105acd53d2f7f1c694ba4c32dce1a17fd";
constexpr Seconds kPatience(0.005);

// Runs an RPC whose failures become its status.
template <typename Call>
RpcStatus answered(ServerContext& context, Call call) {
  try {
    return call();
  } catch (const Failure& failure) {
    return failure.to_status(context);
  }
}

// Sends `current` at once and after every change, until it is final or the caller goes.
template <typename Message, typename Current, typename IsFinal>
RpcStatus watch(ServerContext& context, Writer<Message>& writer, Seconds interval, Current current,
                IsFinal is_final) {
  Message last;
  for (bool is_first = true; !context.IsCancelled(); is_first = false) {
    const Message message = current();
    if (is_first || !google::protobuf::util::MessageDifferencer::Equals(message, last)) writer.Write(message);
    if (is_final(message)) return RpcStatus::OK;
    last = message;
    const auto until = Clock::now() + interval;
    while (Clock::now() < until && !context.IsCancelled()) std::this_thread::sleep_for(kPatience);
  }
  return RpcStatus::CANCELLED;
}

Seconds seconds(const char* field, const google::protobuf::Duration& duration) {
  const Seconds value(duration.seconds() + duration.nanos() / 1e9);
  if (value < Seconds::zero()) throw Failure(ERROR_REASON_INVALID_REQUEST, field, "must not be negative");
  return value;
}

uint32_t number(const std::string& key, const std::string& text) {
  try {
    size_t end = 0;
    const long value = std::stol(text, &end);
    if (end == text.size()) return value;
  } catch (const std::logic_error&) {
    // Falls through: no number, or one that is too large.
  }
  throw Failure(ERROR_REASON_INVALID_REQUEST, key, "not a number");
}

// Reserved metadata keys mean what their fields mean; the two may not differ.
void apply_metadata(GenerateRequest& generate, const ServerContext& context) {
  RoutingHints hints;
  for (const auto& [key_ref, text_ref] : context.client_metadata()) {
    const std::string key(key_ref.data(), key_ref.size()), text(text_ref.data(), text_ref.size());
    if (key == "enginewire-dp-rank") hints.set_dp_rank(number(key, text));
    if (key == "enginewire-priority") hints.set_priority(number(key, text));
    if (key == "enginewire-routing-key") hints.set_routing_key(text);
  }
  const RoutingHints& routing = generate.request().routing();
  const auto agree = [](bool is_same, const char* key) {
    if (!is_same) throw Failure(ERROR_REASON_INVALID_REQUEST, key, "is not what the field of routing says");
  };
  agree(!hints.has_dp_rank() || !routing.has_dp_rank() || hints.dp_rank() == routing.dp_rank(),
        "enginewire-dp-rank");
  agree(!hints.has_priority() || !routing.has_priority() || hints.priority() == routing.priority(),
        "enginewire-priority");
  agree(
      !hints.has_routing_key() || !routing.has_routing_key() || hints.routing_key() == routing.routing_key(),
      "enginewire-routing-key");
  if (generate.has_request()) generate.mutable_request()->mutable_routing()->MergeFrom(hints);
}

SequencePtr sequence_of(const PreprocessedRequest& request) {
  const auto& stop = request.stop_conditions();
  const uint32_t room = kContextLength - request.token_ids_size();
  auto sequence = std::make_shared<Sequence>();
  sequence->prompt_hash = hash_of(request.token_ids());
  sequence->prompt_tokens = request.token_ids_size();
  sequence->max_tokens = std::min(stop.has_max_tokens() ? stop.max_tokens()
                                  : request.is_probe()  ? 1
                                                        : room,
                                  room);
  sequence->min_tokens = stop.min_tokens();
  sequence->visible_stops.insert(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
  sequence->visible_stops.insert(stop.stop_token_ids_visible().begin(), stop.stop_token_ids_visible().end());
  if (stop.ignore_eos()) return sequence;
  sequence->hidden_stops.insert(stop.stop_token_ids_hidden().begin(), stop.stop_token_ids_hidden().end());
  sequence->hidden_stops.insert(request.eos_token_ids().begin(), request.eos_token_ids().end());
  if (request.eos_token_ids().empty()) sequence->hidden_stops.insert(kEos);
  return sequence;
}

void finish(LLMEngineOutput& output, const End& end, uint32_t prompt_tokens, uint32_t completion_tokens) {
  output.set_finish_reason(end.why);
  if (end.token) output.mutable_stop_match()->set_token_id(*end.token);
  auto& usage = *output.mutable_completion_usage();
  usage.set_prompt_tokens(prompt_tokens);
  usage.set_completion_tokens(completion_tokens);
  usage.set_total_tokens(prompt_tokens + completion_tokens);
}

}  // namespace

RpcStatus Discovery::GetEngineInfo(ServerContext*, const GetEngineInfoRequest*, GetEngineInfoResponse* info) {
  auto& config = *info->mutable_config();
  config.set_model(kModel);
  config.set_context_length(kContextLength);
  config.set_max_num_seqs(kMaxRunning);
  config.set_vocab_size(kVocabSize);
  config.add_eos_token_ids(kEos);
  config.set_role(ENGINE_ROLE_AGGREGATED);
  auto& sampling = *config.mutable_capabilities()->mutable_default_sampling();
  sampling.set_temperature(1);
  sampling.set_top_p(1);
  sampling.set_repetition_penalty(1);
  config.mutable_limits()->set_max_request_bytes(4 << 20);
  config.mutable_limits()->set_max_num_queued_reqs(kMaxWaiting);
  info->set_engine_name("enginewire-example-cpp");
  info->set_engine_version("1");
  info->set_instance_id(life_.lifetime_id);
  info->set_engine_lifetime_id(life_.lifetime_id);
  info->set_contract_revision(kRevision);
  info->set_minimum_client_revision(kRevision);
  info->set_maximum_client_revision(kRevision);
  info->set_schema_digest(kSchemaDigest);
  return RpcStatus::OK;
}

RpcStatus Discovery::GetLoad(ServerContext*, const GetLoadRequest*, GetLoadResponse* response) {
  *response->mutable_load() = life_.load();
  return RpcStatus::OK;
}

RpcStatus Discovery::WatchLoad(ServerContext* context, const WatchLoadRequest* request,
                               Writer<WatchLoadResponse>* writer) {
  return answered(*context, [&] {
    const uint32_t interval = request->has_min_interval_ms() ? request->min_interval_ms() : 100;
    if (interval < 10)
      throw Failure(ERROR_REASON_INVALID_REQUEST, "min_interval_ms", "too short, allowed from 10");
    const auto current = [&] {
      WatchLoadResponse response;
      *response.mutable_load() = life_.load();
      return response;
    };
    return watch(*context, *writer, Seconds(interval / 1e3), current,
                 [](const WatchLoadResponse&) { return false; });
  });
}

RpcStatus Discovery::GetTokenizer(ServerContext* context, const GetTokenizerRequest*,
                                  Writer<GetTokenizerResponse>*) {
  return Failure(ERROR_REASON_MODEL_NOT_FOUND, "", "this engine offers no tokenizer").to_status(*context);
}

RpcStatus EngineRpcs::Generate(ServerContext* context, const GenerateRequest* sent,
                               Writer<GenerateResponse>* writer) {
  return answered(*context, [&] {
    life_.check_open();
    GenerateRequest generate = *sent;
    apply_metadata(generate, *context);
    check(generate);
    const SequencePtr sequence = sequence_of(generate.request());
    life_.admit(generate.request_id(), sequence);
    context->AddInitialMetadata("enginewire-lifetime-id", life_.lifetime_id);
    writer->SendInitialMetadata();
    uint32_t position = 0;
    for (bool is_open = true; is_open && !context->IsCancelled();) {
      const Piece piece = life_.next(sequence, kPatience);
      if (piece.tokens.empty() && !piece.end) continue;
      GenerateResponse response;
      response.set_request_id(generate.request_id());
      if (position == 0) response.set_engine_lifetime_id(life_.lifetime_id);
      auto& output = *response.mutable_output();
      output.mutable_token_ids()->Add(piece.tokens.begin(), piece.tokens.end());
      output.set_first_output_position(position);
      position += piece.tokens.size();
      if (piece.end) finish(output, *piece.end, sequence->prompt_tokens, position);
      is_open = writer->Write(response) && !piece.end;
    }
    // Also after a deadline and a lost connection.
    life_.leave(generate.request_id(), sequence);
    return RpcStatus::OK;
  });
}

RpcStatus EngineRpcs::Abort(ServerContext* context, const AbortRequest* request, AbortResponse* response) {
  return answered(*context, [&] {
    if (request->all() == (request->request_ids_size() > 0)) {
      throw Failure(ERROR_REASON_INVALID_REQUEST, "request_ids", "exactly one of ids and all is needed");
    }
    const std::vector<std::string> named(request->request_ids().begin(), request->request_ids().end());
    for (const std::string& id : request->all() ? life_.live_ids() : named) {
      auto& result = *response->add_results();
      result.set_request_id(id);
      result.set_outcome(life_.abort(id));
    }
    return RpcStatus::OK;
  });
}

RpcStatus EngineRpcs::Drain(ServerContext* context, const DrainRequest* request,
                            Writer<DrainResponse>* writer) {
  return answered(*context, [&] {
    const Seconds deadline = request->has_deadline() ? seconds("deadline", request->deadline()) : Seconds(30);
    life_.drain(deadline, seconds("admission_grace", request->admission_grace()));
    const auto is_final = [](const DrainResponse& response) {
      return response.state() > DRAIN_STATE_DRAINING;
    };
    return watch(*context, *writer, Seconds(0.01), [&] { return life_.progress(); }, is_final);
  });
}

RpcStatus EngineRpcs::Cleanup(ServerContext*, const CleanupRequest* request, CleanupResponse* response) {
  response->set_already_clean(life_.cleanup(request->abort_in_flight()));
  return RpcStatus::OK;
}
