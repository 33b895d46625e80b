// The smallest engine of the contract: `build/engine 127.0.0.1:50051`, or `unix:/run/engine.sock`.
// Its model is a hash: `next_token` has it where a real engine calls its own.

#include <google/protobuf/reflection.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <mutex>
#include <regex>
#include <sstream>
#include <thread>
#include <vector>

#include "enginewire/v1/discovery_service.grpc.pb.h"
#include "enginewire/v1/engine_service.grpc.pb.h"

namespace ew = enginewire::v1;
using Clock = std::chrono::steady_clock;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using grpc::ServerContext, grpc::ServerWriter, grpc::Status, grpc::StatusCode;

constexpr uint32_t kSlots = 8, kQueue = 64, kWindow = 4096, kVocabulary = 1000, kEos = 2, kRevision = 2;
constexpr std::chrono::duration<double> kStep(0.005), kShutdown(30);
constexpr double kInfinity = std::numeric_limits<double>::infinity();
const char* const kSchemaDigest = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401";
const char* const kServices[] = {"enginewire.v1.EngineService", "enginewire.v1.DiscoveryService"};
const std::string kLife = std::to_string(std::chrono::system_clock::now().time_since_epoch().count());
const std::regex kId("[A-Za-z0-9._:-]{1,128}");

// A refusal is a status alone, whose details say the reason and the field.
Status refusal(StatusCode code, ew::ErrorReason reason, const std::string& field, const std::string& text) {
  ew::ErrorDetail detail;
  detail.set_reason(reason);
  detail.set_field(field);
  detail.set_retryable(code == StatusCode::UNAVAILABLE || code == StatusCode::RESOURCE_EXHAUSTED);
  ew::Status status;
  status.set_code(code);
  status.set_message(text);
  status.add_details()->PackFrom(detail);
  return {code, field.empty() ? text : field + ": " + text, status.SerializeAsString()};
}

template <typename... Parts>
Status invalid(const std::string& field, const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return refusal(StatusCode::INVALID_ARGUMENT, ew::ERROR_REASON_INVALID_REQUEST, field, text.str());
}

// A number, or the length of a list and a text.
double size_of(const Message& owner, const FieldDescriptor* field) {
  const auto& reflection = *owner.GetReflection();
  if (field->is_repeated()) return reflection.FieldSize(owner, field);
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_BOOL: return reflection.GetBool(owner, field);
    case FieldDescriptor::CPPTYPE_FLOAT: return reflection.GetFloat(owner, field);
    case FieldDescriptor::CPPTYPE_DOUBLE: return reflection.GetDouble(owner, field);
    case FieldDescriptor::CPPTYPE_INT32: return reflection.GetInt32(owner, field);
    case FieldDescriptor::CPPTYPE_UINT32: return reflection.GetUInt32(owner, field);
    case FieldDescriptor::CPPTYPE_STRING: return reflection.GetString(owner, field).size();
    default: return 0;
  }
}

// Holds each field that is set against its rule, which is an option of the field in the contract.
Status check_fields(const std::string& prefix, const Message& message) {
  const auto& reflection = *message.GetReflection();
  std::vector<const FieldDescriptor*> fields;
  reflection.ListFields(message, &fields);
  for (const auto* field : fields) {
    const auto& rule = field->options().GetExtension(ew::rule);
    const std::string path = prefix + field->name();
    const double size = size_of(message, field), least = rule.has_min() ? rule.min() : -kInfinity;
    const double bound = rule.token_count() ? kVocabulary : rule.has_bound() ? rule.bound() : kInfinity;
    const double most = rule.has_max() ? rule.max() : bound;
    if (!(size >= least && size <= most) || (rule.above_min() && size == least))
      return invalid(path, "got ", size, ", allowed ", least, "..", most);
    if (!rule.capability().empty() && !(rule.has_neutral() && size == rule.neutral()))
      return refusal(StatusCode::UNIMPLEMENTED, ew::ERROR_REASON_UNSUPPORTED, path,
                     rule.capability() + " is not advertised");
    for (int i = 0; rule.token_ids() && i < size; ++i)
      if (reflection.GetRepeatedUInt32(message, field, i) >= kVocabulary)
        return invalid(path, "not in the vocabulary, allowed 0..", kVocabulary - 1);
    if (field->message_type() && !field->is_repeated()) {
      const Status inner = check_fields(path + ".", reflection.GetMessage(message, field));
      if (!inner.ok()) return inner;
    }
  }
  return Status::OK;
}

Status check(const ew::GenerateRequest& generate) {
  const auto& request = generate.request();
  const auto& stop = request.stop_conditions();
  const uint64_t count = request.token_ids_size(), least = std::max(stop.min_tokens(), 1u);
  const Status status = check_fields("", request);
  if (!status.ok()) return status;
  if (!std::regex_match(generate.request_id(), kId)) return invalid("request_id", "not a valid id");
  if (!generate.has_request()) return invalid("request", "must be set");
  if (!request.model().empty() && request.model() != "hash")
    return refusal(StatusCode::NOT_FOUND, ew::ERROR_REASON_MODEL_NOT_FOUND, "model", "no such model here");
  if (count == 0) return invalid("token_ids", "must not be empty");
  if (stop.has_max_tokens() && least > stop.max_tokens())
    return invalid("stop_conditions.min_tokens", "got ", least, ", allowed ", stop.max_tokens());
  if (count + least > kWindow)
    return refusal(StatusCode::INVALID_ARGUMENT, ew::ERROR_REASON_CONTEXT_EXCEEDED, "token_ids", "too many");
  return Status::OK;
}

uint32_t next_token(const ew::PreprocessedRequest& request, uint32_t done) {
  uint32_t hash = 2166136261u;
  for (uint32_t token : request.token_ids()) hash = (hash ^ token) * 16777619u;
  hash = (hash ^ done) * 16777619u;
  return 3 + (hash ^ hash >> 15) % (kVocabulary - 3);
}

template <typename Tokens>
bool contains(const Tokens& tokens, uint32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

// Why the newest token is the last one, if it is. A hidden stop wins over a visible one.
ew::FinishReason end_at(const ew::PreprocessedRequest& request, uint32_t token, uint32_t done) {
  const auto& stop = request.stop_conditions();
  const auto& eos = request.eos_token_ids();
  const bool is_eos = eos.empty() ? token == kEos : contains(eos, token);
  const bool may_stop = done >= stop.min_tokens();
  if (may_stop && !stop.ignore_eos() && (is_eos || contains(stop.stop_token_ids_hidden(), token)))
    return ew::FINISH_REASON_EOS;
  if (may_stop && (contains(stop.stop_token_ids(), token) || contains(stop.stop_token_ids_visible(), token)))
    return ew::FINISH_REASON_STOP;
  const uint32_t asked = stop.has_max_tokens() ? stop.max_tokens() : request.is_probe() ? 1 : kWindow;
  const uint32_t most = std::min<uint32_t>(asked, kWindow - request.token_ids_size());
  return done == most ? ew::FINISH_REASON_LENGTH : ew::FINISH_REASON_UNSPECIFIED;
}

// The requests that are live, in the order of their arrival: the first ones run, the others wait.
class Engine final : public ew::EngineService::Service {
 public:
  Status Generate(ServerContext* context, const ew::GenerateRequest* generate,
                  ServerWriter<ew::GenerateResponse>* writer) override {
    const Status status = admit(generate);
    if (!status.ok()) return status;
    const auto& request = generate->request();
    writer->SendInitialMetadata();
    for (uint32_t done = 0; !context->IsCancelled();) {
      std::this_thread::sleep_for(kStep);
      const size_t place = place_of(generate);
      if (place != kEnded && place >= kSlots) continue;
      ew::GenerateResponse response;
      response.set_request_id(generate->request_id());
      if (done == 0) response.set_engine_lifetime_id(kLife);
      auto& output = *response.mutable_output();
      output.set_first_output_position(done);
      output.set_finish_reason(ew::FINISH_REASON_CANCELLED);
      if (place != kEnded) {
        const uint32_t token = next_token(request, done++);
        output.add_token_ids(token);
        output.set_finish_reason(end_at(request, token, done));
        if (output.finish_reason() == ew::FINISH_REASON_STOP) output.mutable_stop_match()->set_token_id(token);
      }
      if (output.finish_reason()) {
        remove(generate);
        auto& usage = *output.mutable_completion_usage();
        usage.set_prompt_tokens(request.token_ids_size());
        usage.set_completion_tokens(done);
        usage.set_total_tokens(request.token_ids_size() + done);
      }
      if (!writer->Write(response) || output.finish_reason()) break;
    }
    remove(generate);  // Also after a deadline and a lost connection.
    return Status::OK;
  }

  Status Abort(ServerContext*, const ew::AbortRequest* request, ew::AbortResponse* response) override {
    if (request->all() != request->request_ids().empty()) return invalid("request_ids", "either these or all");
    const std::lock_guard lock(mutex_);
    std::vector<std::string> ids(request->request_ids().begin(), request->request_ids().end());
    if (request->all())
      for (const auto* generate : live_) ids.push_back(generate->request_id());
    for (const auto& id : ids) {
      const auto found = find(id);
      auto& result = *response->add_results();
      result.set_request_id(id);
      result.set_outcome(found == live_.end() ? ew::ABORT_OUTCOME_UNKNOWN : ew::ABORT_OUTCOME_ABORTED);
      if (found != live_.end()) live_.erase(found);
    }
    return Status::OK;
  }

  Status Drain(ServerContext* context, const ew::DrainRequest* request,
               ServerWriter<ew::DrainResponse>* writer) override {
    const auto& given = request->deadline();
    const std::chrono::duration<double> limit(given.seconds() + given.nanos() / 1e9);
    if (limit.count() < 0) return invalid("deadline", "got ", limit.count(), " s, allowed 0 or more");
    begin_drain(request->has_deadline() ? limit : kShutdown);
    for (auto state = ew::DRAIN_STATE_DRAINING; state == ew::DRAIN_STATE_DRAINING && !context->IsCancelled();) {
      state = drain_state();
      ew::DrainResponse response;
      response.set_state(state);
      response.set_running(load().running());
      writer->Write(response);
      std::this_thread::sleep_for(kStep);
    }
    return Status::OK;
  }

  // Begins a drain or joins it: of several deadlines the earliest counts.
  void begin_drain(std::chrono::duration<double> limit) {
    const std::lock_guard lock(mutex_);
    const auto seconds = std::min(limit, std::chrono::duration<double>(1e8));  // a caller may name any time
    deadline_ = std::min(deadline_, Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds));
    for (const char* name : kServices) health->SetServingStatus(name, false);
  }

  // Ends the drain when nothing is live or its time is over.
  ew::DrainState drain_state() {
    const std::lock_guard lock(mutex_);
    if (!drained_ && live_.empty()) drained_ = ew::DRAIN_STATE_DRAINED;
    if (!drained_ && Clock::now() >= deadline_) drained_ = ew::DRAIN_STATE_TIMED_OUT;
    if (drained_) live_.clear();
    return drained_ ? drained_ : ew::DRAIN_STATE_DRAINING;
  }

  ew::Load load() {
    const std::lock_guard lock(mutex_);
    ew::Load load;
    load.set_state(is_draining() ? ew::ENGINE_STATE_DRAINING : ew::ENGINE_STATE_READY);
    load.set_engine_lifetime_id(kLife);
    load.set_running(std::min<size_t>(live_.size(), kSlots));
    load.set_waiting(live_.size() - load.running());
    return load;
  }

  grpc::HealthCheckServiceInterface* health = nullptr;

 private:
  static constexpr size_t kEnded = -1;
  using Live = std::vector<const ew::GenerateRequest*>;

  Status admit(const ew::GenerateRequest* generate) {
    const Status status = check(*generate);
    if (!status.ok()) return status;
    const std::lock_guard lock(mutex_);
    if (is_draining()) return refusal(StatusCode::UNAVAILABLE, ew::ERROR_REASON_DRAINING, "", "draining");
    if (find(generate->request_id()) != live_.end())
      return refusal(StatusCode::ALREADY_EXISTS, ew::ERROR_REASON_DUPLICATE_ID, "request_id", "is live");
    if (live_.size() >= kSlots + kQueue)
      return refusal(StatusCode::RESOURCE_EXHAUSTED, ew::ERROR_REASON_QUEUE_FULL, "", "the queue is full");
    live_.push_back(generate);
    return Status::OK;
  }

  // How many live requests are before this one.
  size_t place_of(const ew::GenerateRequest* generate) {
    const std::lock_guard lock(mutex_);
    const auto found = std::find(live_.begin(), live_.end(), generate);
    return found == live_.end() ? kEnded : found - live_.begin();
  }

  // Takes a request out of the engine, unless that has happened.
  void remove(const ew::GenerateRequest* generate) {
    const std::lock_guard lock(mutex_);
    live_.erase(std::remove(live_.begin(), live_.end(), generate), live_.end());
  }

  Live::iterator find(const std::string& id) {
    return std::find_if(live_.begin(), live_.end(), [&](const auto* other) { return other->request_id() == id; });
  }

  bool is_draining() const { return deadline_ != Clock::time_point::max(); }

  std::mutex mutex_;
  Live live_;
  Clock::time_point deadline_ = Clock::time_point::max();
  ew::DrainState drained_ = ew::DRAIN_STATE_UNSPECIFIED;
};

class Discovery final : public ew::DiscoveryService::Service {
 public:
  explicit Discovery(Engine& engine) : engine_(engine) {}

  Status GetEngineInfo(ServerContext*, const ew::GetEngineInfoRequest*, ew::GetEngineInfoResponse* info) override {
    info->set_engine_name("minimal-cpp");
    info->set_engine_version("1");
    info->set_instance_id(kLife);
    info->set_engine_lifetime_id(kLife);
    info->set_contract_revision(kRevision);
    info->set_minimum_client_revision(kRevision);
    info->set_maximum_client_revision(kRevision);
    info->set_schema_digest(kSchemaDigest);
    auto& config = *info->mutable_config();
    config.set_model("hash");
    config.set_role(ew::ENGINE_ROLE_AGGREGATED);
    config.set_context_length(kWindow);
    config.set_vocab_size(kVocabulary);
    config.set_max_num_seqs(kSlots);
    config.mutable_limits()->set_max_num_queued_reqs(kQueue);
    auto& sampling = *config.mutable_capabilities()->mutable_default_sampling();
    sampling.set_temperature(1);
    sampling.set_top_p(1);
    sampling.set_repetition_penalty(1);
    return Status::OK;
  }

  Status GetLoad(ServerContext*, const ew::GetLoadRequest*, ew::GetLoadResponse* response) override {
    *response->mutable_load() = engine_.load();
    return Status::OK;
  }

 private:
  Engine& engine_;
};

int main(int, char** argv) {
  // Every thread inherits the mask; this one waits for the signals.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  Engine engine;
  Discovery discovery(engine);
  grpc::EnableDefaultHealthCheckService(true);
  grpc::ServerBuilder builder;
  builder.AddListeningPort(argv[1], grpc::InsecureServerCredentials());
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.RegisterService(&engine);
  builder.RegisterService(&discovery);
  const auto server = builder.BuildAndStart();
  if (!server) return 1;
  engine.health = server->GetHealthCheckService();
  for (const char* name : kServices) engine.health->SetServingStatus(name, true);

  // The first signal drains, the next one ends the drain.
  int number = 0;
  sigwait(&signals, &number);
  engine.begin_drain(kShutdown);
  const timespec step{0, 5'000'000};
  while (engine.drain_state() == ew::DRAIN_STATE_DRAINING)
    if (sigtimedwait(&signals, nullptr, &step) > 0) engine.begin_drain(std::chrono::seconds(0));
  server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
  return 0;
}
