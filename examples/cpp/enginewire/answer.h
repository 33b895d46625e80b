// The answer to one request: which token is its last one, and the messages that carry it.
#pragma once

#include <algorithm>
#include <set>
#include <vector>

#include "enginewire/info.h"
#include "enginewire/v1/engine_service.pb.h"

namespace enginewire {

// One thread may count tokens while another one makes the messages.
class Answer {
 public:
  Answer(const v1::GenerateRequest& generate, const v1::EngineConfig& config)
      : id_(generate.request_id()), prompt_tokens_(generate.request().token_ids_size()) {
    const auto& request = generate.request();
    const auto& stop = request.stop_conditions();
    const uint32_t room = window_of(config) - prompt_tokens_;
    max_tokens_ = std::min(room, stop.has_max_tokens() ? stop.max_tokens() : request.is_probe() ? 1 : room);
    min_tokens_ = stop.min_tokens();
    visible_.insert(stop.stop_token_ids().begin(), stop.stop_token_ids().end());
    visible_.insert(stop.stop_token_ids_visible().begin(), stop.stop_token_ids_visible().end());
    if (stop.ignore_eos()) return;
    const auto& eos = request.eos_token_ids().empty() ? config.eos_token_ids() : request.eos_token_ids();
    hidden_.insert(stop.stop_token_ids_hidden().begin(), stop.stop_token_ids_hidden().end());
    hidden_.insert(eos.begin(), eos.end());
  }

  // How many tokens were counted.
  uint32_t generated() const { return generated_; }

  // Counts `token` and says why it is the last one, if it is. A hidden stop wins over a visible one.
  v1::FinishReason end_at(uint32_t token) {
    const bool may_stop = ++generated_ >= min_tokens_;
    if (may_stop && hidden_.count(token)) return v1::FINISH_REASON_EOS;
    if (may_stop && visible_.count(token)) return v1::FINISH_REASON_STOP;
    return generated_ >= max_tokens_ ? v1::FINISH_REASON_LENGTH : v1::FINISH_REASON_UNSPECIFIED;
  }

  // The message with the next tokens: the last one if it says why.
  v1::GenerateResponse response(const std::vector<uint32_t>& tokens, v1::FinishReason why) {
    v1::GenerateResponse response;
    response.set_request_id(id_);
    if (sent_ == 0) response.set_engine_lifetime_id(lifetime_id());
    auto& output = *response.mutable_output();
    output.mutable_token_ids()->Add(tokens.begin(), tokens.end());
    output.set_first_output_position(sent_);
    output.set_finish_reason(why);
    sent_ += tokens.size();
    if (why == v1::FINISH_REASON_STOP) output.mutable_stop_match()->set_token_id(tokens.back());
    if (why) {
      auto& usage = *output.mutable_completion_usage();
      usage.set_prompt_tokens(prompt_tokens_);
      usage.set_completion_tokens(sent_);
      usage.set_total_tokens(prompt_tokens_ + sent_);
    }
    return response;
  }

 private:
  std::string id_;
  uint32_t prompt_tokens_, max_tokens_, min_tokens_;
  std::set<uint32_t> visible_, hidden_;
  uint32_t generated_ = 0;  // Of who counts.
  uint32_t sent_ = 0;       // Of who makes messages.
};

}  // namespace enginewire
