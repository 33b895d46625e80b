//! Which requests the engine may be given. Paths are those below GenerateRequest.request. A field that no table
//! names is a capability this engine does not have.

use crate::engine::{CONTEXT_LENGTH, VOCAB_SIZE};
use crate::failure::{failed, invalid, Failure};
use crate::pb::{ErrorReason, GenerateRequest};
use serde_json::{Map, Value};

pub const MODEL: &str = "hash";
pub const REVISION: u32 = 2;
pub const OLDEST_REVISION: u32 = 1;
const INFINITY: f64 = f64::INFINITY;

/// Of a list, a text and bytes the length counts. Lists of numbers are token ids.
const RANGES: &[(&str, f64, f64)] = &[
    ("token_ids", 0.0, INFINITY),
    ("eos_token_ids", 0.0, 256.0),
    ("stop_conditions.max_tokens", 1.0, INFINITY),
    ("stop_conditions.min_tokens", 0.0, INFINITY),
    ("stop_conditions.stop_token_ids", 0.0, 256.0),
    ("stop_conditions.stop_token_ids_visible", 0.0, 256.0),
    ("stop_conditions.stop_token_ids_hidden", 0.0, 256.0),
    ("sampling_options.n", 1.0, INFINITY),
    ("sampling_options.temperature", 0.0, 100.0),
    ("sampling_options.top_p", f64::MIN_POSITIVE, 1.0),
    ("sampling_options.top_k", -1.0, VOCAB_SIZE as f64),
    ("output_options.stream_interval", 1.0, INFINITY),
    ("routing.dp_rank", 0.0, 0.0),
    ("annotations", 0.0, 64.0),
    ("extra_args", 0.0, 65536.0),
];

/// Fields of other capabilities, and the value with which they ask for nothing.
const NEUTRAL: &[(&str, f64)] = &[
    ("sampling_options.n", 1.0),
    ("sampling_options.best_of", 1.0),
    ("sampling_options.presence_penalty", 0.0),
    ("sampling_options.frequency_penalty", 0.0),
    ("sampling_options.repetition_penalty", 1.0),
    ("sampling_options.min_p", 0.0),
    ("sampling_options.use_beam_search", 0.0),
    ("sampling_options.length_penalty", 1.0),
    ("routing.lora_name", 0.0),
    ("routing.priority", 0.0),
    ("routing.priority_jump", 0.0),
];

#[rustfmt::skip]
const ANYTHING: &[&str] = &[
    "model", "stop_conditions.ignore_eos", "is_probe", "cache_salt", "bypass_prefix_cache",
    // For routers and callers:
    "mm_routing_info", "mdc_sum", "router_config_override", "migration_link", "router", "agent_context",
    "request_timestamp_ms", "routing.backend_instance_id", "routing.prefill_worker_id",
    "routing.decode_worker_id", "routing.prefill_dp_rank", "routing.expected_output_tokens",
    "routing.allowed_worker_ids", "routing.routing_constraints", "routing.session_control",
    "routing.routing_key",
];
const CONTAINERS: &[&str] = &["stop_conditions", "sampling_options", "output_options", "routing"];
const OTHER_ROLES: &[&str] = &["prefill_result", "bootstrap_info"];

/// A failure that names the field, or nothing.
pub fn check(generate: &GenerateRequest) -> Result<(), Failure> {
    let id = generate.request_id.as_bytes();
    let is_name = id.iter().all(|letter| letter.is_ascii_alphanumeric() || b"._:-".contains(letter));
    require(is_name && (1..=128).contains(&id.len()), "request_id", "not 1 to 128 of A-Z a-z 0-9 . _ : -")?;
    if generate.client_revision > REVISION {
        let text = format!("not served, got {}, allowed 0..{REVISION}", generate.client_revision);
        let mut failure = failed(ErrorReason::RevisionMismatch, "client_revision", text);
        for (name, revision) in [("minimum_client_revision", OLDEST_REVISION), ("maximum_client_revision", REVISION)] {
            failure.facts.insert(name.into(), revision.to_string());
        }
        return Err(failure);
    }
    let request = generate.request.as_ref().ok_or_else(|| invalid("request", "must be set"))?;
    if let Ok(Value::Object(fields)) = serde_json::to_value(request) {
        check_fields("", &fields)?;
    }
    if !request.model.is_empty() && request.model != MODEL {
        return Err(failed(ErrorReason::ModelNotFound, "model", "no such model here"));
    }
    let count = request.token_ids.len();
    require(count > 0, "token_ids", "must not be empty")?;
    let too_long = |path, text| failed(ErrorReason::ContextExceeded, path, text);
    if count >= CONTEXT_LENGTH as usize {
        return Err(too_long("token_ids", format!("{count} of at most {}", CONTEXT_LENGTH - 1)));
    }
    let (path, room) = ("stop_conditions.min_tokens", CONTEXT_LENGTH - count as u32);
    let (least, most) =
        request.stop_conditions.as_ref().map_or((None, None), |stop| (stop.min_tokens, stop.max_tokens));
    let least = least.unwrap_or(0);
    require(least <= most.unwrap_or(u32::MAX), path, format!("above max_tokens, got {least}"))?;
    if least > room {
        return Err(too_long(path, format!("got {least}, allowed 0..{room}")));
    }
    for (i, text) in request.annotations.iter().enumerate() {
        require(text.len() <= 1024, &format!("annotations[{i}]"), "longer than 1024 bytes")?;
    }
    let agent = request.agent_context.as_ref().map_or(0, |agent| agent.extra.len());
    let router = request.router_config_override.as_ref().map_or(0, |router| router.extra.len());
    for (path, size) in [("agent_context.extra", agent), ("router_config_override.extra", router)] {
        require(size <= 65536, path, "longer than 65536 bytes")?;
    }
    Ok(())
}

/// Looks at every field that is set.
fn check_fields(owner: &str, fields: &Map<String, Value>) -> Result<(), Failure> {
    for (name, value) in fields {
        let path = format!("{owner}{name}");
        if value == "" || value.as_array().map_or(false, |entries| entries.is_empty()) {
            continue;
        }
        if OTHER_ROLES.contains(&&*path) {
            return Err(failed(ErrorReason::RoleMismatch, &path, "this engine is AGGREGATED"));
        }
        check_finite(&path, value)?;
        match value {
            Value::Object(inner) if CONTAINERS.contains(&&*path) => check_fields(&format!("{path}."), inner)?,
            _ => check_value(&path, value)?,
        }
    }
    Ok(())
}

fn check_value(path: &str, value: &Value) -> Result<(), Failure> {
    let size = match value {
        Value::Bool(is_set) => f64::from(u8::from(*is_set)),
        Value::String(text) => text.len() as f64,
        Value::Array(entries) => entries.len() as f64,
        _ => value.as_f64().unwrap_or(0.0),
    };
    let range = RANGES.iter().find(|range| range.0 == path);
    if let Some((_, low, high)) = range {
        require((*low..=*high).contains(&size), path, format!("got {size}, allowed {low}..{high}"))?;
    }
    let ids = value.as_array().filter(|_| path.ends_with("token_ids") || path.contains(".stop_token_ids"));
    for (i, id) in ids.into_iter().flatten().enumerate() {
        let is_known = id.as_u64().map_or(true, |id| id < u64::from(VOCAB_SIZE));
        let text = || format!("not in the vocabulary, got {id}, allowed 0..{}", VOCAB_SIZE - 1);
        if range.is_some() && !is_known {
            return Err(invalid(&format!("{path}[{i}]"), text()));
        }
    }
    let neutral = NEUTRAL.iter().find(|neutral| neutral.0 == path);
    if neutral.map_or(range.is_some() || ANYTHING.contains(&path), |neutral| size == neutral.1) {
        return Ok(());
    }
    Err(failed(ErrorReason::Unsupported, path, "this engine does not advertise the capability"))
}

/// No number in `value`, however deep, is NaN or an infinity: JSON has none of them and says null.
fn check_finite(path: &str, value: &Value) -> Result<(), Failure> {
    match value {
        Value::Null => Err(invalid(path, "must be finite")),
        Value::Array(entries) => {
            entries.iter().enumerate().try_for_each(|(i, entry)| check_finite(&format!("{path}[{i}]"), entry))
        }
        Value::Object(fields) => {
            fields.iter().try_for_each(|(name, inner)| check_finite(&format!("{path}.{name}"), inner))
        }
        _ => Ok(()),
    }
}

fn require(is_right: bool, path: &str, text: impl Into<String>) -> Result<(), Failure> {
    if is_right {
        Ok(())
    } else {
        Err(invalid(path, text))
    }
}
