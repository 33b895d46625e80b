"""The request fields that vLLM and OpenAI publish.

Those of vLLM's main branch at 002032ee2b18 (November 2026), those that only older versions of it have, and
those of OpenAI's Python SDK 3.54.
"""

from __future__ import annotations

VLLM_CHAT = """
    messages model frequency_penalty logit_bias logprobs top_logprobs max_tokens max_completion_tokens n
    presence_penalty response_format seed stop stream stream_options temperature top_p tools tool_choice
    reasoning_effort thinking_token_budget include_reasoning parallel_tool_calls user use_beam_search
    top_k min_p repetition_penalty watermarking length_penalty stop_token_ids include_stop_str_in_output
    ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens
    truncation_side prompt_logprobs logprob_token_ids allowed_token_ids bad_words echo
    add_generation_prompt continue_final_message add_special_tokens documents chat_template
    chat_template_kwargs media_io_kwargs mm_processor_kwargs structured_outputs priority request_id
    session_id return_tokens_as_token_ids return_token_ids routed_experts_prompt_start
    return_token_offsets return_prompt_text return_mm_kwargs cache_salt kv_transfer_params
    ec_transfer_params vllm_xargs repetition_detection stream_interval
"""
VLLM_COMPLETIONS = """
    model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
    stream_options suffix temperature top_p user use_beam_search top_k min_p repetition_penalty
    watermarking length_penalty stop_token_ids include_stop_str_in_output ignore_eos min_tokens
    skip_special_tokens spaces_between_special_tokens truncate_prompt_tokens truncation_side
    allowed_token_ids prompt_logprobs logprob_token_ids bad_words prompt_embeds add_special_tokens
    response_format structured_outputs priority request_id session_id return_tokens_as_token_ids
    return_token_ids routed_experts_prompt_start return_token_offsets return_mm_kwargs cache_salt
    kv_transfer_params ec_transfer_params vllm_xargs repetition_detection thinking_token_budget
    stream_interval
"""
VLLM_RESPONSES = """
    background include input instructions max_output_tokens max_tool_calls metadata model logit_bias
    parallel_tool_calls previous_response_id prompt reasoning service_tier store stream temperature text
    tool_choice tools top_logprobs top_p top_k truncation user skip_special_tokens
    include_stop_str_in_output prompt_cache_key request_id mm_processor_kwargs priority cache_salt
    enable_response_messages previous_input_messages previous_response structured_outputs
    repetition_penalty seed stop ignore_eos vllm_xargs
"""
VLLM_EMBEDDINGS = """
    model user truncate_prompt_tokens padding truncation_side request_id priority mm_processor_kwargs
    cache_salt input add_special_tokens encoding_format embed_dtype endianness dimensions use_activation
    messages add_generation_prompt continue_final_message chat_template chat_template_kwargs
    media_io_kwargs
"""
VLLM_OLDER = """
    best_of guided_json guided_regex guided_choice guided_grammar guided_decoding_backend
    guided_whitespace_pattern logits_processors detokenize
"""
OPENAI_CHAT = """
    audio frequency_penalty function_call functions logit_bias logprobs max_completion_tokens max_tokens
    messages metadata modalities model moderation n parallel_tool_calls prediction presence_penalty
    prompt_cache_key prompt_cache_options prompt_cache_retention reasoning_effort response_format
    safety_identifier seed service_tier stop store stream stream_options temperature tool_choice tools
    top_logprobs top_p user verbosity web_search_options
"""
OPENAI_COMPLETIONS = """
    best_of echo frequency_penalty logit_bias logprobs max_tokens model n presence_penalty prompt seed
    stop stream stream_options suffix temperature top_p user
"""
OPENAI_RESPONSES = """
    access_programs background background_options context_management conversation image include input
    instructions max_output_tokens max_tool_calls metadata model moderation parallel_tool_calls
    previous_response_id prompt prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
    safety_identifier service_tier store stream stream_options temperature text tool_choice tools
    top_logprobs top_p truncation user
"""
OPENAI_EMBEDDINGS = """
    dimensions encoding_format input model user
"""

FIELDS = {
    "chat": {*VLLM_CHAT.split(), *VLLM_OLDER.split(), *OPENAI_CHAT.split()},
    "completions": {*VLLM_COMPLETIONS.split(), *VLLM_OLDER.split(), *OPENAI_COMPLETIONS.split()},
    "responses": {*VLLM_RESPONSES.split(), *OPENAI_RESPONSES.split()},
    "embeddings": {*VLLM_EMBEDDINGS.split(), *OPENAI_EMBEDDINGS.split()},
}
IN_VLLM = {
    "chat": {*VLLM_CHAT.split()},
    "completions": {*VLLM_COMPLETIONS.split()},
    "responses": {*VLLM_RESPONSES.split()},
    "embeddings": {*VLLM_EMBEDDINGS.split()},
}
