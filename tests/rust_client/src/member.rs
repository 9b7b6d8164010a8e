//! One member of a group: tests/integration/group_member.py says what it writes, and what its arguments are.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use confluent_kafka::common::serialization::ByteArrayDeserializer;
use confluent_kafka::common::{Error, TopicPartition};
use confluent_kafka::consumer::{
    Consumer, ConsumerConfig, ConsumerHandle, ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata,
    SubscriptionPattern,
};
use serde_json::{Value, json};

use crate::{Failure, Settings, end_of_input};

const COMMIT_EVERY: usize = 20;

struct Member {
    file: File,
    name: String,
    consumer: ConsumerHandle,
    /// What is to be committed for the partitions that it has: the offset after what was handled last.
    next: Mutex<HashMap<TopicPartition, i64>>,
}

impl Member {
    fn write(&self, what: &str, facts: &[Value]) {
        let mut line = vec![json!(self.name), json!(what)];
        line.extend_from_slice(facts);
        (&self.file).write_all(format!("{}\n", Value::from(line)).as_bytes()).expect("the file takes a line");
    }

    /// What is to be committed now, taken out.
    fn wanted(&self) -> HashMap<TopicPartition, i64> {
        std::mem::take(&mut self.next.lock().unwrap())
    }

    /// What became of a commit. What could not be committed now is the next time.
    fn committed(&self, wanted: HashMap<TopicPartition, i64>, done: Result<(), Error>) {
        match done {
            Ok(()) => {
                let places: Vec<Value> =
                    wanted.iter().map(|(one, offset)| json!([one.topic(), one.partition(), offset])).collect();
                self.write("committed", &[places.into()]);
            }
            Err(failure) => {
                self.write("not committed", &[failure.to_string().into()]);
                self.next.lock().unwrap().extend(wanted);
            }
        }
    }

    fn forget(&self, what: &str, partitions: &[TopicPartition]) {
        self.next.lock().unwrap().retain(|one, _offset| !partitions.contains(one));
        self.write(what, &[named(partitions)]);
    }
}

fn named(partitions: &[TopicPartition]) -> Value {
    partitions.iter().map(|one| json!([one.topic(), one.partition()])).collect()
}

fn as_offsets(wanted: &HashMap<TopicPartition, i64>) -> Result<HashMap<TopicPartition, OffsetAndMetadata>, Error> {
    wanted.iter().map(|(one, offset)| Ok((one.clone(), OffsetAndMetadata::new(*offset)?))).collect()
}

struct Listener(Arc<Member>);

#[async_trait]
impl ConsumerRebalanceListener for Listener {
    async fn on_partitions_assigned(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        self.0.write("given", &[named(partitions)]);
        Ok(())
    }

    async fn on_partitions_revoked(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        let wanted = self.0.wanted();
        if !wanted.is_empty() {
            let done = self.0.consumer.commit_sync_with_offsets(as_offsets(&wanted)?).await;
            self.0.committed(wanted, done);
        }
        self.0.forget("back", partitions);
        Ok(())
    }

    async fn on_partitions_lost(&self, partitions: &[TopicPartition]) -> Result<(), Error> {
        self.0.forget("lost", partitions);
        Ok(())
    }
}

pub async fn run(path: &str, name: &str, topics: &str, settings: Settings) -> Result<(), Failure> {
    let is_to_leave = end_of_input();
    let mut all: Settings = [("auto.offset.reset", "earliest"), ("enable.auto.commit", "false")]
        .map(|(key, value)| (key.into(), value.into()))
        .into();
    all.extend(settings);
    let bytes = ByteArrayDeserializer::new;
    let mut consumer: KafkaConsumer<Vec<u8>, Vec<u8>> =
        KafkaConsumer::new(ConsumerConfig::new(&all)?, bytes(), bytes())?;
    let member = Arc::new(Member {
        file: OpenOptions::new().append(true).open(path)?,
        name: name.into(),
        consumer: consumer.handle(),
        next: Mutex::default(),
    });
    let listener = Arc::new(Listener(member.clone()));
    if topics.starts_with('^') {
        consumer.subscribe_with_pattern_listener(SubscriptionPattern::new(topics), listener).await?;
    } else {
        consumer.subscribe_with_topics_listener(vec![topics.into()], listener).await?;
    }
    let mut handled = 0;
    while !is_to_leave.load(Ordering::SeqCst) {
        for one in consumer.poll(Duration::from_millis(100)).await? {
            member.write("handled", &[one.topic().into(), one.partition().into(), one.offset().into()]);
            let place = TopicPartition::new(one.topic(), one.partition());
            member.next.lock().unwrap().insert(place, one.offset() + 1);
            handled += 1;
            if handled % COMMIT_EVERY == 0 {
                commit(&mut consumer, &member).await?;
            }
        }
        commit(&mut consumer, &member).await?;
    }
    consumer.close().await?;
    member.write("left", &[]);
    Ok(())
}

async fn commit(consumer: &mut KafkaConsumer<Vec<u8>, Vec<u8>>, member: &Member) -> Result<(), Failure> {
    let wanted = member.wanted();
    if !wanted.is_empty() {
        let done = consumer.commit_sync_with_offsets(as_offsets(&wanted)?).await;
        member.committed(wanted, done);
    }
    Ok(())
}
