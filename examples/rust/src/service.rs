//! The RPCs: each reads its message, asks the engine, and answers.

use crate::engine::{Engine, Sequence, CONTEXT_LENGTH, EOS, MAX_RUNNING, MAX_WAITING, VOCAB_SIZE};
use crate::failure::{failed, invalid, Failure};
use crate::grpc::{frame, message, stream, timeout, unary, watch, Answer, Sender, MAX_REQUEST_BYTES};
use crate::pb::stop_match::Match;
use crate::pb::*;
use crate::rules::{check, MODEL, OLDEST_REVISION, REVISION};
use http::{HeaderValue, Request, Response};
use hyper::Body;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

const SCHEMA_DIGEST: &str = "fa41fa5ef2bbc2ee20ed039adc070fe8fecaf5669fa3d37b4cb1b468b8735401";
pub const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(30);
const MOST_IDS: usize = 16_384; // Of one abort.
const YEAR: Duration = Duration::from_secs(365 * 86_400);
const TICK: Duration = Duration::from_millis(10);

pub async fn answer(engine: &Arc<Engine>, call: &mut Request<Body>) -> Result<Response<Answer>, Failure> {
    let watched = engine.clone();
    Ok(match call.uri().path() {
        "/enginewire.v1.DiscoveryService/GetEngineInfo" => unary(info(engine, message(call).await?)),
        "/enginewire.v1.DiscoveryService/GetLoad" => {
            let GetLoadRequest {} = message(call).await?;
            unary(GetLoadResponse { load: Some(engine.load()) })
        }
        "/enginewire.v1.DiscoveryService/WatchLoad" => {
            let request: WatchLoadRequest = message(call).await?;
            let interval = request.min_interval_ms.unwrap_or(100);
            if interval < 10 {
                return Err(invalid("min_interval_ms", format!("got {interval}, allowed from 10")));
            }
            let load = move || (WatchLoadResponse { load: Some(watched.load()) }, false);
            watch(Duration::from_millis(interval.into()), load)
        }
        "/enginewire.v1.EngineService/Generate" => generate(engine, call).await?,
        "/enginewire.v1.EngineService/Abort" => unary(abort(engine, message(call).await?)?),
        "/enginewire.v1.EngineService/Drain" => {
            let request: DrainRequest = message(call).await?;
            let deadline = duration("deadline", request.deadline)?.unwrap_or(SHUTDOWN_TIMEOUT);
            engine.drain(deadline, duration("admission_grace", request.admission_grace)?.unwrap_or_default());
            watch(TICK, move || {
                let progress = watched.progress();
                let is_final = progress.state > DrainState::Draining as i32;
                (progress, is_final)
            })
        }
        "/enginewire.v1.EngineService/Cleanup" => {
            let request: CleanupRequest = message(call).await?;
            unary(CleanupResponse { already_clean: engine.cleanup(request.abort_in_flight).await })
        }
        "/grpc.health.v1.Health/Check" => match health(engine, &message(call).await?) {
            SERVICE_UNKNOWN => return Err(failed(ErrorReason::ModelNotFound, "", "no such service")),
            status => unary(HealthStatus { status }),
        },
        "/grpc.health.v1.Health/Watch" => {
            let request = message(call).await?;
            watch(TICK, move || (HealthStatus { status: health(&watched, &request) }, false))
        }
        path => return Err(failed(ErrorReason::Unsupported, "", format!("no such method: {path:.100}"))),
    })
}

fn info(engine: &Engine, _: GetEngineInfoRequest) -> GetEngineInfoResponse {
    let sampling =
        SamplingDefaults { temperature: 1.0, top_p: 1.0, repetition_penalty: 1.0, ..Default::default() };
    let limits = Limits {
        max_request_bytes: Some(MAX_REQUEST_BYTES as u64),
        max_num_queued_reqs: Some(MAX_WAITING as u32),
        // HTTP/2 libraries of Rust count no pings.
        min_keepalive_interval_ms: Some(1000),
        ..Default::default()
    };
    let config = EngineConfig {
        model: MODEL.into(),
        context_length: Some(CONTEXT_LENGTH),
        max_num_seqs: Some(MAX_RUNNING as u64),
        vocab_size: VOCAB_SIZE,
        eos_token_ids: vec![EOS],
        role: EngineRole::Aggregated as i32,
        capabilities: Some(Capabilities {
            cleanup: true,
            watch_load: true,
            default_sampling: Some(sampling),
            ..Default::default()
        }),
        limits: Some(limits),
        ..Default::default()
    };
    GetEngineInfoResponse {
        config: Some(config),
        engine_name: "enginewire-example-rust".into(),
        engine_version: "1".into(),
        instance_id: engine.lifetime_id.clone(),
        engine_lifetime_id: engine.lifetime_id.clone(),
        contract_revision: REVISION,
        minimum_client_revision: OLDEST_REVISION,
        maximum_client_revision: REVISION,
        schema_digest: SCHEMA_DIGEST.into(),
        ..Default::default()
    }
}

async fn generate(engine: &Arc<Engine>, call: &mut Request<Body>) -> Result<Response<Answer>, Failure> {
    let patience = timeout(call.headers()).unwrap_or(YEAR).min(YEAR);
    let request: GenerateRequest = message(call).await?;
    check(&request)?;
    let sequence = Arc::new(Sequence::new(&request));
    engine.admit(&sequence)?;
    let (sender, mut response) = stream();
    let lifetime_id = HeaderValue::from_str(&engine.lifetime_id).expect("digits");
    response.headers_mut().insert("enginewire-lifetime-id", lifetime_id);
    let engine = engine.clone();
    tokio::spawn(async move {
        let is_late = tokio::select! {
            _ = send_outputs(&engine.lifetime_id, &sequence, &sender) => false,
            _ = sender.closed() => false,
            _ = sleep(patience) => true,
        };
        engine.remove(&sequence);
        if is_late {
            let _ = sender.send(Err(failed(ErrorReason::DeadlineExceeded, "", "the deadline passed"))).await;
        }
    });
    Ok(response)
}

/// While the reader lags, tokens are gathered into one output.
async fn send_outputs(lifetime_id: &str, sequence: &Sequence, sender: &Sender) {
    let mut position = 0;
    loop {
        let (token_ids, end) = sequence.read().await;
        let engine_lifetime_id = if position == 0 { lifetime_id.into() } else { String::new() };
        let mut output = LlmEngineOutput { first_output_position: position, token_ids, ..Default::default() };
        position += output.token_ids.len() as u32;
        let is_last = end != FinishReason::Unspecified;
        if is_last {
            let (prompt_tokens, completion_tokens) = (sequence.prompt_tokens, position);
            let total_tokens = prompt_tokens + completion_tokens;
            let usage =
                CompletionUsage { prompt_tokens, completion_tokens, total_tokens, ..Default::default() };
            output.completion_usage = Some(usage);
            output.set_finish_reason(end);
        }
        if end == FinishReason::Stop {
            output.stop_match =
                output.token_ids.last().map(|id| StopMatch { r#match: Some(Match::TokenId(*id)) });
        }
        let output = Some(output);
        let request_id = sequence.id.clone();
        let response = GenerateResponse { output, request_id, engine_lifetime_id, engine_event: None };
        if sender.send(Ok(frame(&response))).await.is_err() || is_last {
            return;
        }
    }
}

fn abort(engine: &Engine, request: AbortRequest) -> Result<AbortResponse, Failure> {
    if request.all != request.request_ids.is_empty() {
        return Err(invalid("request_ids", "exactly one of ids and all is needed"));
    }
    if request.request_ids.len() > MOST_IDS {
        return Err(invalid("request_ids", format!("too many for one answer, allowed {MOST_IDS}")));
    }
    let ids = if request.all { engine.live_ids() } else { request.request_ids };
    let result = |request_id: String| AbortResult { outcome: engine.abort(&request_id) as i32, request_id };
    Ok(AbortResponse { results: ids.into_iter().map(result).collect() })
}

fn duration(field: &str, value: Option<prost_types::Duration>) -> Result<Option<Duration>, Failure> {
    value.map(|value| value.try_into().map_err(|_| invalid(field, "must not be negative"))).transpose()
}

const SERVICE_UNKNOWN: i32 = 3;

#[derive(Clone, PartialEq, prost::Message)]
struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HealthStatus {
    #[prost(int32, tag = "1")]
    status: i32,
}

fn health(engine: &Engine, request: &HealthRequest) -> i32 {
    let is_serving = match request.service.as_str() {
        "" => engine.state() != EngineState::Stopped,
        "enginewire.v1.EngineService" | "enginewire.v1.DiscoveryService" => {
            engine.state() == EngineState::Ready
        }
        _ => return SERVICE_UNKNOWN,
    };
    if is_serving {
        1
    } else {
        2
    }
}
