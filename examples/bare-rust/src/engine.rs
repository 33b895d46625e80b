//! A bare engine: four calls, no checks, no queue. What is missing is done by `enginewire engine --upstream`.

use crate::failure::{failed, Failure};
use crate::grpc::{frame, message, stream, unary, Answer};
use crate::pb::{stop_match::Match, *};
use http::{Request, Response};
use hyper::Body;
use std::{sync::Mutex, time::Duration};

const VOCAB_SIZE: u32 = 1000;
static LIVE: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Here a real engine asks its model.
fn next_token(tokens: &[u32]) -> u32 {
    let hash = tokens.iter().fold(2166136261, |hash: u32, id| (hash ^ id).wrapping_mul(16777619));
    (hash ^ hash >> 15) % VOCAB_SIZE
}

/// A token that ends the choice says so: hidden stops first, then visible ones, then the limit.
fn finish(output: &mut LlmEngineOutput, request: &PreprocessedRequest, stop: &StopConditions) {
    let (token, count) = (output.token_ids[0], output.first_output_position + 1);
    let is_in = |lists: [&[u32]; 2]| count >= stop.min_tokens() && lists.concat().contains(&token);
    if !stop.ignore_eos() && is_in([&request.eos_token_ids, &stop.stop_token_ids_hidden]) {
        output.set_finish_reason(FinishReason::Eos);
    } else if is_in([&stop.stop_token_ids, &stop.stop_token_ids_visible]) {
        output.set_finish_reason(FinishReason::Stop);
        output.stop_match = Some(StopMatch { r#match: Some(Match::TokenId(token)) });
    } else if count == stop.max_tokens() {
        output.set_finish_reason(FinishReason::Length);
    }
}

fn generate(generate: GenerateRequest, life: &'static str) -> Response<Answer> {
    let (sender, response) = stream();
    tokio::spawn(async move {
        let id = generate.request_id;
        LIVE.lock().unwrap().push(id.clone());
        let request = generate.request.unwrap_or_default();
        let stop = request.stop_conditions.clone().unwrap_or_default();
        let mut tokens = request.token_ids.clone();
        for position in 0..stop.max_tokens() {
            tokio::time::sleep(Duration::from_millis(2)).await;
            let mut output = LlmEngineOutput { first_output_position: position, ..Default::default() };
            if LIVE.lock().unwrap().contains(&id) {
                tokens.push(next_token(&tokens));
                output.token_ids.push(tokens[tokens.len() - 1]);
                finish(&mut output, &request, &stop);
            } else {
                output.set_finish_reason(FinishReason::Cancelled);
            }
            let is_last = output.finish_reason != 0;
            let engine_lifetime_id = if position == 0 { life.into() } else { String::new() };
            let answer = GenerateResponse {
                output: Some(output),
                request_id: id.clone(),
                engine_lifetime_id,
                ..Default::default()
            };
            // It fails when the call is over: cancelled, or past its deadline.
            if sender.send(Ok(frame(&answer))).await.is_err() || is_last {
                break;
            }
        }
        LIVE.lock().unwrap().retain(|live| *live != id);
    });
    response
}

fn abort(request: AbortRequest) -> AbortResponse {
    let mut live = LIVE.lock().unwrap();
    let end = |request_id: String| {
        let outcome = if live.contains(&request_id) { AbortOutcome::Aborted } else { AbortOutcome::Unknown };
        live.retain(|id| *id != request_id);
        AbortResult { request_id, outcome: outcome as i32 }
    };
    AbortResponse { results: request.request_ids.into_iter().map(end).collect() }
}

pub async fn answer(call: &mut Request<Body>, life: &'static str) -> Result<Response<Answer>, Failure> {
    Ok(match call.uri().path().trim_start_matches("/enginewire.v1.") {
        "DiscoveryService/GetEngineInfo" => unary(GetEngineInfoResponse {
            config: Some(EngineConfig {
                model: "bare".into(),
                vocab_size: VOCAB_SIZE,
                context_length: Some(4096),
                max_num_seqs: Some(8),
                ..Default::default()
            }),
            engine_lifetime_id: life.into(),
            ..Default::default()
        }),
        "DiscoveryService/GetLoad" => {
            let running = LIVE.lock().unwrap().len() as u32;
            unary(GetLoadResponse { load: Some(Load { running, ..Default::default() }) })
        }
        "EngineService/Generate" => generate(message(call).await?, life),
        "EngineService/Abort" => unary(abort(message(call).await?)),
        _ => return Err(failed(ErrorReason::Unsupported, "", "no such method")),
    })
}
