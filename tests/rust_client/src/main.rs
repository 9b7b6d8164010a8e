//! Confluent's client in Rust against a running broker (tests/integration/test_clients_rust.py): a member of a group, a
//! producer, transactions, or each function of its Admin.

mod admin;
mod member;
mod produce;
mod transact;

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub type Failure = Box<dyn std::error::Error + Send + Sync>;
pub type Settings = HashMap<String, String>;

/// Becomes true when standard input ends.
pub fn end_of_input() -> Arc<AtomicBool> {
    let is_over = Arc::new(AtomicBool::new(false));
    let told = is_over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::SeqCst);
    });
    is_over
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let given: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match given[..] {
        ["member", path, name, topics, settings] => {
            member::run(path, name, topics, serde_json::from_str(settings)?).await
        }
        ["produce", topic, partitions, settings] => {
            produce::run(topic, partitions.parse()?, serde_json::from_str(settings)?).await
        }
        ["transact", topic, settings] => transact::run(topic, serde_json::from_str(settings)?).await,
        ["admin", topic, group, settings] => admin::run(topic, group, serde_json::from_str(settings)?).await,
        _ => Err(format!("cannot do {given:?}").into()),
    }
}
