//! The program: `engine --listen 127.0.0.1:50051` or `--listen unix:/run/engine.sock`.

mod engine;
mod failure;
mod grpc;
mod rules;
mod service;

#[allow(dead_code)]
mod pb {
    include!(concat!(env!("OUT_DIR"), "/enginewire.v1.rs"));
}
mod rpc {
    include!(concat!(env!("OUT_DIR"), "/google.rpc.rs"));
}

use engine::Engine;
use hyper::{server::conn::Http, service::service_fn, Body, Request};
use std::os::unix::fs::FileTypeExt;
use std::{convert::Infallible, error::Error, fs, sync::Arc, time::Duration};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::signal::unix::{signal, SignalKind};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let address = match &arguments[..] {
        [option, address] if option == "--listen" => address,
        _ => return Err("usage: engine --listen HOST:PORT|unix:PATH".into()),
    };
    let named = |error: Box<dyn Error>| format!("{address}: {error}");
    let engine = Engine::start();
    let served = engine.clone();
    if let Some(path) = address.strip_prefix("unix:") {
        let listener = listen_on_socket(path).await.map_err(named)?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(stream, served.clone());
            }
        });
    } else {
        let listener = TcpListener::bind(address).await.map_err(|error| named(error.into()))?;
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let _ = stream.set_nodelay(true);
                serve(stream, served.clone());
            }
        });
    }
    println!("listening on {address}");
    shut_down(&engine).await
}

/// Replaces the socket file of a dead server.
async fn listen_on_socket(path: &str) -> Result<UnixListener, Box<dyn Error>> {
    if UnixStream::connect(path).await.is_ok() {
        return Err("is in use".into());
    }
    if fs::symlink_metadata(path).map_or(false, |file| file.file_type().is_socket()) {
        fs::remove_file(path)?;
    }
    Ok(UnixListener::bind(path)?)
}

fn serve(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, engine: Arc<Engine>) {
    let service = service_fn(move |mut call: Request<Body>| {
        let engine = engine.clone();
        async move {
            let answered = service::answer(&engine, &mut call).await;
            Ok::<_, Infallible>(answered.unwrap_or_else(|failure| grpc::refusal(&failure)))
        }
    });
    let connection = Http::new()
        .http2_only(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .http2_keep_alive_timeout(Duration::from_secs(5))
        .serve_connection(stream, service);
    // A connection that breaks ends its calls, which notice it on their own.
    tokio::spawn(async move { drop(connection.await) });
}

/// Drains after the first signal; a second one cuts the drain short.
async fn shut_down(engine: &Engine) -> Result<(), Box<dyn Error>> {
    let (mut terminate, mut interrupt) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    engine.drain(service::SHUTDOWN_TIMEOUT, Duration::ZERO);
    while engine.progress().state <= pb::DrainState::Draining as i32 {
        tokio::select! {
            _ = terminate.recv() => engine.drain(Duration::ZERO, Duration::ZERO),
            _ = interrupt.recv() => engine.drain(Duration::ZERO, Duration::ZERO),
            _ = sleep(Duration::from_millis(10)) => {}
        }
    }
    engine.cleanup(true).await;
    // The last outputs are on their way.
    sleep(Duration::from_millis(300)).await;
    Ok(())
}
