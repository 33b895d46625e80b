//! Failures and how they travel: a gRPC status whose details hold an ErrorDetail and google.rpc's messages.

use crate::pb::{ErrorDetail, ErrorReason, Status};
use crate::rpc;
use http::{HeaderMap, HeaderValue};
use prost::Message;
use std::collections::HashMap;

pub const INVALID_ARGUMENT: i32 = 3;
pub const DEADLINE_EXCEEDED: i32 = 4;
pub const NOT_FOUND: i32 = 5;
pub const RESOURCE_EXHAUSTED: i32 = 8;
pub const UNIMPLEMENTED: i32 = 12;
pub const UNAVAILABLE: i32 = 14;

#[derive(Debug, Default)]
pub struct Failure {
    reason: ErrorReason,
    field: String,
    text: String,
    pub facts: HashMap<String, String>,
}

pub fn failed(reason: ErrorReason, field: &str, text: impl Into<String>) -> Failure {
    Failure { reason, field: field.into(), text: text.into(), ..Default::default() }
}

pub fn invalid(field: &str, text: impl Into<String>) -> Failure {
    failed(ErrorReason::InvalidRequest, field, text)
}

impl Failure {
    fn code(&self) -> i32 {
        match self.reason {
            ErrorReason::InvalidRequest | ErrorReason::ContextExceeded => INVALID_ARGUMENT,
            ErrorReason::Unsupported => UNIMPLEMENTED,
            ErrorReason::ModelNotFound => NOT_FOUND,
            ErrorReason::DuplicateId => 6,
            ErrorReason::QueueFull | ErrorReason::TooLarge => RESOURCE_EXHAUSTED,
            ErrorReason::RoleMismatch | ErrorReason::RevisionMismatch => 9,
            ErrorReason::Draining | ErrorReason::EngineDead => UNAVAILABLE,
            ErrorReason::Cancelled => 1,
            ErrorReason::DeadlineExceeded => DEADLINE_EXCEEDED,
            _ => 13,
        }
    }

    /// The trailers of a call that ends with this failure.
    pub fn trailers(&self) -> HeaderMap {
        let code = self.code();
        let message =
            if self.field.is_empty() { self.text.clone() } else { format!("{}: {}", self.field, self.text) };
        let retryable = code == UNAVAILABLE || self.reason == ErrorReason::QueueFull;
        let after = retryable.then(|| prost_types::Duration { seconds: 1, nanos: 0 });
        let detail = ErrorDetail {
            reason: self.reason as i32,
            field: self.field.clone(),
            retryable,
            retry_after: after.clone(),
            metadata: self.facts.clone(),
        };
        let reason = self.reason.as_str_name().trim_start_matches("ERROR_REASON_").into();
        let info = rpc::ErrorInfo { reason, domain: "enginewire".into(), metadata: self.facts.clone() };
        let mut details = vec![any("enginewire.v1.ErrorDetail", &detail), any("google.rpc.ErrorInfo", &info)];
        if !self.field.is_empty() {
            let violation =
                rpc::bad_request::FieldViolation { field: self.field.clone(), description: message.clone() };
            details
                .push(any("google.rpc.BadRequest", &rpc::BadRequest { field_violations: vec![violation] }));
        }
        let mut trailers = HeaderMap::new();
        if retryable {
            details.push(any("google.rpc.RetryInfo", &rpc::RetryInfo { retry_delay: after }));
            trailers.insert("grpc-retry-pushback-ms", HeaderValue::from_static("1000"));
        }
        let status = Status { code, message: message.clone(), details }.encode_to_vec();
        let text = [("grpc-message", percent_encoded(&message)), ("grpc-status", code.to_string())];
        let bytes = ("grpc-status-details-bin", base64::encode_config(status, base64::STANDARD_NO_PAD));
        for (name, value) in text.into_iter().chain([bytes]) {
            trailers.insert(name, HeaderValue::from_str(&value).expect("printable ASCII"));
        }
        trailers
    }
}

fn any(name: &str, message: &impl Message) -> prost_types::Any {
    prost_types::Any { type_url: format!("type.googleapis.com/{name}"), value: message.encode_to_vec() }
}

fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'%';
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
