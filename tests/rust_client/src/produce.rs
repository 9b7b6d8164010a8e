//! A producer that writes to all partitions until standard input ends; then it prints where each record is.

use std::sync::atomic::Ordering;

use confluent_kafka::common::serialization::{ByteArraySerializer, StringSerializer};
use confluent_kafka::producer::{KafkaProducer, Producer, ProducerConfig, ProducerRecord};
use serde_json::{Value, json};

use crate::{Failure, Settings, end_of_input};

/// Records of a partition before it waits for all of them.
const AT_A_TIME: usize = 5;

pub async fn run(topic: &str, partitions: i32, settings: Settings) -> Result<(), Failure> {
    let is_over = end_of_input();
    let config = ProducerConfig::new(&settings)?;
    let producer: KafkaProducer<String, Vec<u8>> =
        KafkaProducer::new(config, StringSerializer::new(), ByteArraySerializer::new())?;
    let mut places = Vec::new();
    while !is_over.load(Ordering::SeqCst) {
        let mut sent = Vec::new();
        for _ in 0..AT_A_TIME {
            for partition in 0..partitions {
                let (key, value) = (Some("key".to_string()), Some(b"x".to_vec()));
                let record = ProducerRecord::with_partition_key(topic.into(), Some(partition), key, value)?;
                sent.push(producer.send(record).await?);
            }
        }
        for one in sent {
            let place = one.get().await?;
            places.push(json!([place.topic(), place.partition(), place.offset()]));
        }
    }
    producer.flush().await?;
    producer.close().await?;
    println!("{}", Value::from(places));
    Ok(())
}
