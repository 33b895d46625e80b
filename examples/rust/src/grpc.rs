//! gRPC over hyper, what tonic does where it can be had: one message in, any number out, a status at the end.

use crate::failure::{failed, invalid, Failure};
use crate::pb::ErrorReason;
use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Request, Response};
use hyper::body::HttpBody;
use hyper::Body;
use prost::Message;
use std::convert::Infallible;
use std::io::Read;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::sleep;

pub const MAX_REQUEST_BYTES: usize = 4 << 20;

/// Takes the messages of an answer; closed when the caller has gone.
pub type Sender = mpsc::Sender<Result<Bytes, Failure>>;

/// The body of an answer: its messages, then its status.
pub struct Answer {
    messages: mpsc::Receiver<Result<Bytes, Failure>>,
    failure: Option<Failure>,
    is_over: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn is_end_stream(&self) -> bool {
        self.is_over
    }

    fn poll_data(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Infallible>>> {
        self.messages.poll_recv(context).map(|next| match next? {
            Ok(message) => Some(Ok(message)),
            Err(failure) => {
                self.failure = Some(failure);
                None
            }
        })
    }

    fn poll_trailers(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Result<Option<HeaderMap>, Infallible>> {
        let ok = || HeaderMap::from_iter([("grpc-status".parse().unwrap(), HeaderValue::from_static("0"))]);
        Poll::Ready(Ok(Some(self.failure.as_ref().map_or_else(ok, Failure::trailers))))
    }
}

/// A call that is accepted: its headers go out at once.
pub fn stream() -> (Sender, Response<Answer>) {
    let (sender, messages) = mpsc::channel(1);
    let mut response = Response::new(Answer { messages, failure: None, is_over: false });
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    (sender, response)
}

pub fn unary(message: impl Message) -> Response<Answer> {
    let (sender, response) = stream();
    let _ = sender.try_send(Ok(frame(&message)));
    response
}

/// A call that is refused has no body, and its status where the headers are.
pub fn refusal(failure: &Failure) -> Response<Answer> {
    let (_, mut response) = stream();
    response.body_mut().is_over = true;
    response.headers_mut().extend(failure.trailers());
    response
}

/// Sends what `current` gives at once and after every change, until it is final or the caller goes.
pub fn watch<M, F>(every: Duration, mut current: F) -> Response<Answer>
where
    M: Message + PartialEq + 'static,
    F: FnMut() -> (M, bool) + Send + 'static,
{
    let (sender, response) = stream();
    tokio::spawn(async move {
        let mut last = None;
        loop {
            let (message, is_final) = current();
            if last.as_ref() != Some(&message) && sender.send(Ok(frame(&message))).await.is_err() || is_final
            {
                return;
            }
            last = Some(message);
            tokio::select! {
                _ = sleep(every) => {}
                _ = sender.closed() => return,
            }
        }
    });
    response
}

/// A message with the five bytes before it: not compressed, and its length.
pub fn frame(message: &impl Message) -> Bytes {
    let mut bytes = BytesMut::new();
    bytes.put_u8(0);
    bytes.put_u32(message.encoded_len() as u32);
    message.encode(&mut bytes).expect("a buffer that grows");
    bytes.freeze()
}

/// The one message of a call.
pub async fn message<M: Message + Default>(request: &mut Request<Body>) -> Result<M, Failure> {
    let too_large = || failed(ErrorReason::TooLarge, "", format!("allowed 0..{MAX_REQUEST_BYTES} bytes"));
    let (mut bytes, mut size) = (BytesMut::new(), 0);
    // Also what is too much: hyper resets a call that is answered before its end, and the status is lost.
    while let Some(data) = request.body_mut().data().await {
        let data = data.map_err(|_| failed(ErrorReason::Cancelled, "", "the caller has gone"))?;
        size += data.len();
        if size <= MAX_REQUEST_BYTES + 5 {
            bytes.extend_from_slice(&data);
        } else if size > 16 * MAX_REQUEST_BYTES {
            break;
        }
    }
    if size > MAX_REQUEST_BYTES + 5 {
        return Err(too_large());
    }
    if bytes.len() < 5 {
        return Err(invalid("", "no message"));
    }
    let mut body = bytes.split_off(5).to_vec();
    if bytes[0] == 1 {
        if request.headers().get("grpc-encoding").map_or(true, |name| name != "gzip") {
            return Err(failed(ErrorReason::Unsupported, "", "compressed with something other than gzip"));
        }
        let mut plain = Vec::new();
        let limit = MAX_REQUEST_BYTES as u64 + 1;
        let inflated = flate2::read::GzDecoder::new(&body[..]).take(limit).read_to_end(&mut plain);
        inflated.map_err(|_| invalid("", "what is said to be gzip is not"))?;
        body = plain;
    }
    if body.len() > MAX_REQUEST_BYTES {
        return Err(too_large());
    }
    M::decode(&body[..]).map_err(|_| invalid("", "the bytes do not parse"))
}

/// The time that the caller gives a call.
pub fn timeout(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let nanos = match text.chars().last()? {
        'H' => 3_600_000_000_000,
        'M' => 60_000_000_000,
        'S' => 1_000_000_000,
        'm' => 1_000_000,
        'u' => 1_000,
        _ => 1,
    };
    // At most eight digits, says gRPC.
    let amount = text.trim_end_matches(char::is_alphabetic).parse::<u64>().ok()?.min(99_999_999);
    Some(Duration::from_nanos(amount.saturating_mul(nanos)))
}
