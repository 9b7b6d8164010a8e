//! A transactional producer: of three transactions the second is aborted; then another one of its id fences it. It prints
//! what the fenced one is told.

use confluent_kafka::common::serialization::{ByteArraySerializer, StringSerializer};
use confluent_kafka::producer::{KafkaProducer, Producer, ProducerConfig, ProducerRecord};

use crate::{Failure, Settings};

async fn started(settings: &Settings) -> Result<KafkaProducer<String, Vec<u8>>, Failure> {
    let config = ProducerConfig::new(settings)?;
    let producer = KafkaProducer::new(config, StringSerializer::new(), ByteArraySerializer::new())?;
    producer.init_transactions().await?;
    Ok(producer)
}

async fn send(producer: &KafkaProducer<String, Vec<u8>>, topic: &str, value: &str) -> Result<(), Failure> {
    let (key, value) = (Some("key".to_string()), Some(value.as_bytes().to_vec()));
    producer.send(ProducerRecord::with_partition_key(topic.into(), Some(0), key, value)?).await?.get().await?;
    Ok(())
}

pub async fn run(topic: &str, settings: Settings) -> Result<(), Failure> {
    let first = started(&settings).await?;
    for value in ["committed 1", "aborted", "committed 2"] {
        first.begin_transaction()?;
        send(&first, topic, value).await?;
        if value == "aborted" {
            first.abort_transaction().await?;
        } else {
            first.commit_transaction().await?;
        }
    }
    first.begin_transaction()?;
    send(&first, topic, "fenced").await?;
    let second = started(&settings).await?;
    let told = first.commit_transaction().await;
    second.begin_transaction()?;
    send(&second, topic, "committed 3").await?;
    second.commit_transaction().await?;
    second.close().await?;
    println!("{}", told.err().map_or("nothing".to_string(), |error| error.to_string()));
    Ok(())
}
