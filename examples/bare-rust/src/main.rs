//! The program: `bare-engine unix:/tmp/raw.sock`. It holds what tonic does where that can be had.

mod engine;
// Of the complete example: gRPC over hyper, and how a failure travels.
#[allow(dead_code)]
#[path = "../../rust/src/failure.rs"]
mod failure;
#[allow(dead_code)]
#[path = "../../rust/src/grpc.rs"]
mod grpc;
#[allow(dead_code)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/enginewire.v1.rs"));
}
mod rpc {
    include!(concat!(env!("OUT_DIR"), "/google.rpc.rs"));
}

use hyper::{server::conn::Http, service::service_fn};
use std::{convert::Infallible, error::Error, time::SystemTime};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let address = std::env::args().nth(1).ok_or("usage: bare-engine unix:PATH")?;
    let life: &str = Box::leak(format!("{:?}", SystemTime::now()).into_boxed_str());
    let listener = tokio::net::UnixListener::bind(address.trim_start_matches("unix:"))?;
    loop {
        let (connection, _) = listener.accept().await?;
        let service = service_fn(move |mut call| async move {
            let answered = engine::answer(&mut call, life).await;
            Ok::<_, Infallible>(answered.unwrap_or_else(|failure| grpc::refusal(&failure)))
        });
        tokio::spawn(Http::new().http2_only(true).serve_connection(connection, service));
    }
}
