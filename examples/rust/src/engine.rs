//! The engine: eight slots, a queue, and one token per running request and step. The next token is a hash of
//! prompt and position. Also what a server is doing: ready, draining, stopped. Knows nothing about gRPC.

use crate::failure::{failed, Failure};
use crate::pb::{
    AbortOutcome, DrainResponse, DrainState, EngineState, ErrorReason, FinishReason, GenerateRequest, Load,
};
use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::Notify;

pub const VOCAB_SIZE: u32 = 1000;
pub const EOS: u32 = 2;
pub const CONTEXT_LENGTH: u32 = 4096;
pub const MAX_RUNNING: usize = 8;
pub const MAX_WAITING: usize = 256;
const STEP: Duration = Duration::from_millis(4);
const REMEMBERED: Duration = Duration::from_secs(10);
const MOST_REMEMBERED: usize = 4096;
const NEVER: Duration = Duration::from_secs(100 * 365 * 86_400);

pub struct Sequence {
    pub id: String,
    pub prompt_tokens: u32,
    hash: u32,
    max_tokens: u32,
    min_tokens: u32,
    visible_stops: HashSet<u32>,
    hidden_stops: HashSet<u32>,
    output: Mutex<Output>,
    changed: Notify,
}

#[derive(Default)]
struct Output {
    generated: u32,
    unread: Vec<u32>,
    end: FinishReason,
}

impl Sequence {
    pub fn new(generate: &GenerateRequest) -> Self {
        let request = generate.request.clone().unwrap_or_default();
        let stop = request.stop_conditions.unwrap_or_default();
        let prompt_tokens = request.token_ids.len() as u32;
        let room = CONTEXT_LENGTH - prompt_tokens;
        let eos = if request.eos_token_ids.is_empty() { vec![EOS] } else { request.eos_token_ids };
        let hidden_stops = eos.into_iter().chain(stop.stop_token_ids_hidden);
        Self {
            id: generate.request_id.clone(),
            prompt_tokens,
            hash: request.token_ids.iter().fold(2166136261, |hash, id| (hash ^ id).wrapping_mul(16777619)),
            max_tokens: stop.max_tokens.unwrap_or(if request.is_probe { 1 } else { room }).min(room),
            min_tokens: stop.min_tokens.unwrap_or(0),
            visible_stops: stop.stop_token_ids.into_iter().chain(stop.stop_token_ids_visible).collect(),
            hidden_stops: if stop.ignore_eos == Some(true) { HashSet::new() } else { hidden_stops.collect() },
            output: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// What the reader has not seen yet, and the end if there is one.
    pub async fn read(&self) -> (Vec<u32>, FinishReason) {
        loop {
            {
                let mut output = self.output.lock().unwrap();
                if !output.unread.is_empty() || output.end != FinishReason::Unspecified {
                    return (take(&mut output.unread), output.end);
                }
            }
            self.changed.notified().await;
        }
    }

    /// Generates a token; the reason when it is the last one. A hidden stop wins over a visible one.
    fn next(&self) -> Option<FinishReason> {
        let mut output = self.output.lock().unwrap();
        let mut mixed = self.hash.wrapping_add(output.generated.wrapping_mul(0x9e3779b9));
        mixed = (mixed ^ (mixed >> 16)).wrapping_mul(0x85ebca6b);
        mixed = (mixed ^ (mixed >> 13)).wrapping_mul(0xc2b2ae35);
        let token = 3 + (mixed ^ (mixed >> 16)) % (VOCAB_SIZE - 3);
        output.generated += 1;
        output.unread.push(token);
        self.changed.notify_one();
        let may_stop = output.generated >= self.min_tokens;
        match token {
            _ if may_stop && self.hidden_stops.contains(&token) => Some(FinishReason::Eos),
            _ if may_stop && self.visible_stops.contains(&token) => Some(FinishReason::Stop),
            _ => (output.generated >= self.max_tokens).then_some(FinishReason::Length),
        }
    }

    fn end(&self, why: FinishReason) {
        self.output.lock().unwrap().end = why;
        self.changed.notify_one();
    }
}

pub struct Engine {
    pub lifetime_id: String,
    inside: Mutex<Inside>,
}

struct Inside {
    state: EngineState,
    /// In the order of arrival: the first ones run, the others wait.
    live: Vec<Arc<Sequence>>,
    /// What the next abort of an id is told; an unknown id that arrives after its abort is refused.
    past: HashMap<String, (AbortOutcome, Instant)>,
    counts: Load,
    is_cleaning: bool,
    is_draining: bool,
    grace_end: Instant,
    deadline: Instant,
    drained: Option<DrainState>,
}

impl Engine {
    pub fn start() -> Arc<Self> {
        let born = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970");
        let lifetime_id = format!("{:x}-{}", born.as_nanos(), std::process::id());
        let counts = Load { engine_lifetime_id: lifetime_id.clone(), ..Default::default() };
        let never = Instant::now() + NEVER;
        let inside = Mutex::new(Inside {
            state: EngineState::Ready,
            live: vec![],
            past: HashMap::new(),
            counts,
            is_cleaning: false,
            is_draining: false,
            grace_end: never,
            deadline: never,
            drained: None,
        });
        let engine = Arc::new(Self { lifetime_id, inside });
        let stepped = engine.clone();
        tokio::spawn(async move {
            let mut ticks = tokio::time::interval(STEP);
            loop {
                ticks.tick().await;
                stepped.lock().step();
            }
        });
        engine
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().expect("no step panics")
    }

    pub fn state(&self) -> EngineState {
        self.lock().state
    }

    /// Accepts the request, or fails and nothing has happened.
    pub fn admit(&self, sequence: &Arc<Sequence>) -> Result<(), Failure> {
        let mut inside = self.lock();
        if inside.is_cleaning {
            return Err(failed(ErrorReason::EngineDead, "", "the engine was cleaned up"));
        }
        if inside.is_closed() {
            return Err(failed(ErrorReason::Draining, "", "the server is draining"));
        }
        if inside.find(&sequence.id).is_some() {
            return Err(failed(ErrorReason::DuplicateId, "request_id", "is live"));
        }
        if inside.recall(&sequence.id) == Some(AbortOutcome::Unknown) {
            inside.past.remove(&sequence.id);
            return Err(failed(ErrorReason::Cancelled, "request_id", "aborted before it arrived"));
        }
        if inside.live.len() >= MAX_RUNNING + MAX_WAITING {
            let mut full = failed(ErrorReason::QueueFull, "", "the queue is full");
            full.facts.insert("queue_depth".into(), inside.waiting().len().to_string());
            full.facts.insert("limit".into(), MAX_WAITING.to_string());
            return Err(full);
        }
        inside.live.push(sequence.clone());
        Ok(())
    }

    /// Ends a request whose reader has gone, if it is live.
    pub fn remove(&self, sequence: &Arc<Sequence>) {
        self.lock().end(sequence, FinishReason::Cancelled);
    }

    pub fn abort(&self, id: &str) -> AbortOutcome {
        let mut inside = self.lock();
        if let Some(sequence) = inside.find(id) {
            inside.end(&sequence, FinishReason::Cancelled);
            return AbortOutcome::Aborted;
        }
        inside.recall(id).unwrap_or_else(|| {
            inside.remember(id, AbortOutcome::Unknown);
            AbortOutcome::Unknown
        })
    }

    pub fn live_ids(&self) -> Vec<String> {
        self.lock().live.iter().map(|sequence| sequence.id.clone()).collect()
    }

    pub fn load(&self) -> Load {
        let inside = self.lock();
        let waiting = inside.waiting();
        Load {
            running: (inside.live.len() - waiting.len()) as u32,
            waiting: waiting.len() as u32,
            waiting_tokens: waiting.iter().map(|sequence| u64::from(sequence.prompt_tokens)).sum(),
            state: inside.state as i32,
            ..inside.counts.clone()
        }
    }

    /// Begins the drain or joins it. Of several deadlines the earliest wins; the grace is that of the first caller.
    pub fn drain(&self, deadline: Duration, grace: Duration) {
        let (mut inside, now) = (self.lock(), Instant::now());
        inside.deadline = inside.deadline.min(now + deadline.min(NEVER));
        if !std::mem::replace(&mut inside.is_draining, true) {
            inside.grace_end = now + grace.min(NEVER);
        }
        inside.leave_ready();
    }

    pub fn progress(&self) -> DrainResponse {
        let mut inside = self.lock();
        let state = inside.drain_state() as i32;
        let waiting = inside.waiting().len();
        DrainResponse {
            state,
            running: (inside.live.len() - waiting) as u32,
            waiting: waiting as u32,
            pending_transfers: 0,
        }
    }

    /// True when an earlier call had cleaned up.
    pub async fn cleanup(&self, abort_in_flight: bool) -> bool {
        {
            let mut inside = self.lock();
            inside.is_cleaning = true;
            inside.leave_ready();
            if abort_in_flight {
                inside.abort_all();
            }
        }
        while !self.lock().live.is_empty() {
            tokio::time::sleep(STEP).await;
        }
        std::mem::replace(&mut self.lock().state, EngineState::Stopped) == EngineState::Stopped
    }
}

impl Inside {
    fn step(&mut self) {
        let running = self.live[..self.live.len().min(MAX_RUNNING)].to_vec();
        self.counts.step += u64::from(!running.is_empty());
        for sequence in running {
            self.counts.tokens_generated += 1;
            if let Some(why) = sequence.next() {
                self.end(&sequence, why);
            }
        }
        self.drain_state();
    }

    fn waiting(&self) -> &[Arc<Sequence>] {
        self.live.get(MAX_RUNNING..).unwrap_or_default()
    }

    fn find(&self, id: &str) -> Option<Arc<Sequence>> {
        self.live.iter().find(|sequence| sequence.id == id).cloned()
    }

    fn end(&mut self, ended: &Arc<Sequence>, why: FinishReason) {
        if let Some(i) = self.live.iter().position(|sequence| Arc::ptr_eq(sequence, ended)) {
            self.live.remove(i);
            self.counts.requests_finished += 1;
            self.remember(&ended.id, AbortOutcome::Finished);
            ended.end(why);
        }
    }

    fn abort_all(&mut self) {
        while let Some(sequence) = self.live.last().cloned() {
            self.end(&sequence, FinishReason::Cancelled);
        }
    }

    fn remember(&mut self, id: &str, outcome: AbortOutcome) {
        self.past.retain(|_, (_, since)| since.elapsed() < REMEMBERED);
        if self.past.len() >= MOST_REMEMBERED {
            self.past.clear();
        }
        self.past.insert(id.into(), (outcome, Instant::now()));
    }

    fn recall(&self, id: &str) -> Option<AbortOutcome> {
        self.past.get(id).filter(|(_, since)| since.elapsed() < REMEMBERED).map(|(outcome, _)| *outcome)
    }

    fn is_closed(&self) -> bool {
        Instant::now() >= self.grace_end.min(self.deadline)
    }

    fn leave_ready(&mut self) {
        if self.state == EngineState::Ready {
            self.state = EngineState::Draining;
        }
    }

    fn drain_state(&mut self) -> DrainState {
        match self.drained {
            Some(state) => return state,
            None if !self.is_closed() => return DrainState::Grace,
            None if self.live.is_empty() => self.drained = Some(DrainState::Drained),
            None if Instant::now() < self.deadline => return DrainState::Draining,
            None => {
                self.abort_all();
                self.drained = Some(DrainState::TimedOut);
            }
        }
        self.drain_state()
    }
}
