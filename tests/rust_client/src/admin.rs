//! Each function of Admin that asks a broker, once. It prints an object: by function what was said, as Debug has it, or the error's text.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::Debug;

use confluent_kafka::admin::{
    AbortTransactionSpec, Admin, AdminClient, AdminClientConfig, AlterConfigOp, ConfigEntry, FeatureUpdate,
    MemberToRemove, NewPartitionReassignment, NewPartitions, NewTopic, OffsetSpec, OpType, RecordsToDelete,
    RemoveMembersFromConsumerGroupOptions, ScramMechanism, UpgradeType, UserScramCredentialDeletion,
};
use confluent_kafka::common::acl::{AccessControlEntry, AclBinding, AclBindingFilter, AclOperation, AclPermissionType};
use confluent_kafka::common::config::ConfigResource;
use confluent_kafka::common::config::config_resource::Type;
use confluent_kafka::common::quota::{ClientQuotaAlteration, ClientQuotaEntity, ClientQuotaFilter, Op};
use confluent_kafka::common::resource::{PatternType, ResourcePattern, ResourceType};
use confluent_kafka::common::{ElectionType, KafkaFuture, TopicCollection, TopicPartition, TopicPartitionReplica};
use confluent_kafka::consumer::OffsetAndMetadata;
use serde_json::{Map, Value, json};

use crate::{Failure, Settings};

struct Asked {
    admin: Box<dyn Admin>,
    /// With some records.
    topic: String,
    /// One that has read all of it and has no members.
    group: String,
    told: Map<String, Value>,
}

impl Asked {
    /// Wait for one function's answer.
    async fn say<T: Clone + Debug + Send + 'static>(&mut self, function: &str, answer: KafkaFuture<T>) -> Option<T> {
        let answer = answer.get().await;
        let said = match &answer {
            Ok(value) => json!({"ok": format!("{value:?}")}),
            Err(failure) => json!({"error": failure.to_string()}),
        };
        let before = self.told.insert(function.into(), said);
        assert!(before.is_none(), "{function} is asked once");
        answer.ok()
    }

    fn partition(&self) -> TopicPartition {
        TopicPartition::new(self.topic.as_str(), 0)
    }

    async fn topics(&mut self) -> Result<(), Failure> {
        let name = format!("{}-made", self.topic);
        let configs = BTreeMap::from([("retention.ms".to_string(), "600000".to_string())]);
        let wanted = NewTopic::with_num_partitions_replication_factor(name.as_str(), Some(1), Some(1));
        let made = self.admin.create_topics(&[wanted.set_configs(Some(configs))]);
        self.say("create_topics", made.all()).await;
        let id = made.topic_id(&name).get().await?;
        self.say("list_topics", self.admin.list_topics().names()).await;
        let more = HashMap::from([(name.clone(), NewPartitions::increase_to(3))]);
        self.say("create_partitions", self.admin.create_partitions(&more).all()).await;
        let described = self.admin.describe_topics_with_topic_names(std::slice::from_ref(&name));
        self.say("describe_topics_with_topic_names", described.all_topic_names().unwrap()).await;
        let described = self.admin.describe_topics_with_topics(TopicCollection::of_topic_ids(vec![id]));
        self.say("describe_topics_with_topics", described.all_topic_ids().unwrap()).await;
        let specs =
            [OffsetSpec::earliest(), OffsetSpec::latest(), OffsetSpec::max_timestamp(), OffsetSpec::for_timestamp(1)];
        for (spec, what) in specs.into_iter().zip(["earliest", "latest", "max_timestamp", "for_timestamp"]) {
            let asked = HashMap::from([(self.partition(), spec)]);
            self.say(&format!("list_offsets {what}"), self.admin.list_offsets(&asked).all()).await;
        }
        let old = HashMap::from([(self.partition(), RecordsToDelete::with_offset(2))]);
        self.say("delete_records", self.admin.delete_records(&old).all()).await;
        self.say("delete_topics_with_string_slice", self.admin.delete_topics_with_string_slice(&[name]).all()).await;
        let none = TopicCollection::of_topic_ids(vec![id]);
        self.say("delete_topics_with_topic_collection", self.admin.delete_topics_with_topic_collection(none).all())
            .await;
        Ok(())
    }

    async fn cluster(&mut self) -> Result<(), Failure> {
        let cluster = self.admin.describe_cluster();
        self.say("describe_cluster", cluster.nodes()).await;
        let nodes = cluster.nodes().get().await?;
        let all: Vec<i32> = nodes.iter().map(|one| one.id()).collect();
        let described = self.admin.describe_topics_with_topic_names(std::slice::from_ref(&self.topic));
        let topics = described.all_topic_names().unwrap().get().await?;
        let leader = topics[&self.topic].partitions()[0].leader().ok_or("partition 0 has no leader")?.id();
        let topic = ConfigResource::new(Type::Topic, self.topic.clone());
        let broker = ConfigResource::new(Type::Broker, leader.to_string());
        self.say("describe_configs", self.admin.describe_configs(&[topic.clone(), broker]).all()).await;
        let entry = ConfigEntry::new("retention.ms".into(), Some("700000".into()));
        let wanted = HashMap::from([(topic, vec![AlterConfigOp::new(entry, OpType::Set)])]);
        self.say("incremental_alter_configs", self.admin.incremental_alter_configs(&wanted).all()).await;
        self.say("list_config_resources", self.admin.list_config_resources().all()).await;
        self.say("describe_log_dirs", self.admin.describe_log_dirs(&all).all_descriptions()).await;
        let replica = TopicPartitionReplica::new(self.topic.as_str(), 0, leader);
        let described = self.admin.describe_replica_log_dirs(std::slice::from_ref(&replica));
        self.say("describe_replica_log_dirs", described.all()).await;
        let elsewhere = HashMap::from([(replica, "/nowhere".to_string())]);
        self.say("alter_replica_log_dirs", self.admin.alter_replica_log_dirs(&elsewhere).all()).await;
        let elected = self.admin.elect_leaders(ElectionType::Preferred, Some(HashSet::from([self.partition()])));
        self.say("elect_leaders", elected.partitions()).await;
        let moves = HashMap::from([(self.partition(), Some(NewPartitionReassignment::new(vec![99])?))]);
        self.say("alter_partition_reassignments", self.admin.alter_partition_reassignments(&moves).all()).await;
        let moving = self.admin.list_partition_reassignments().reassignments();
        self.say("list_partition_reassignments", moving).await;
        self.say("describe_features", self.admin.describe_features().feature_metadata()).await;
        let level = HashMap::from([("group.version".to_string(), FeatureUpdate::new(1, UpgradeType::Upgrade)?)]);
        self.say("update_features", self.admin.update_features(&level)?.all()).await;
        self.say("unregister_controller", self.admin.unregister_controller(99).all()).await;
        Ok(())
    }

    async fn groups(&mut self) -> Result<(), Failure> {
        let (group, all) = (self.group.clone(), [self.group.clone()]);
        self.say("list_groups", self.admin.list_groups().all()).await;
        self.say("describe_consumer_groups", self.admin.describe_consumer_groups(&all).all()).await;
        self.say("describe_classic_groups", self.admin.describe_classic_groups(&all).all()).await;
        let asked = self.admin.list_consumer_group_offsets_with_group_id(&group);
        self.say("list_consumer_group_offsets_with_group_id", asked.partitions_to_offset_and_metadata()?).await;
        let offsets = HashMap::from([(self.partition(), OffsetAndMetadata::with_metadata(3, "moved")?)]);
        let moved = self.admin.alter_consumer_group_offsets(&group, &offsets);
        self.say("alter_consumer_group_offsets", moved.all()).await;
        let asked = self
            .admin
            .list_consumer_group_offsets_with_group_specs(&HashMap::from([(group.clone(), Default::default())]));
        self.say("list_consumer_group_offsets_with_group_specs", asked.all()).await;
        let partitions = HashSet::from([self.partition()]);
        let deleted = self.admin.delete_consumer_group_offsets(&group, &partitions);
        self.say("delete_consumer_group_offsets", deleted.all()).await;
        let whom = RemoveMembersFromConsumerGroupOptions::with_members([MemberToRemove::new("nobody")])?;
        let removed = self.admin.remove_members_from_consumer_group_with_options(&group, whom);
        self.say("remove_members_from_consumer_group_with_options", removed.all()).await;
        self.say("delete_consumer_groups", self.admin.delete_consumer_groups(&all).all()).await;
        Ok(())
    }

    async fn transactions(&mut self) -> Result<(), Failure> {
        let ids = ["nobody".to_string()];
        self.say("describe_producers", self.admin.describe_producers(&[self.partition()]).all()).await;
        self.say("list_transactions", self.admin.list_transactions().all()).await;
        self.say("describe_transactions", self.admin.describe_transactions(&ids).all()).await;
        self.say("fence_producers", self.admin.fence_producers(&ids).all()).await;
        let spec = AbortTransactionSpec::new(self.partition(), 1, 0, 0);
        self.say("abort_transaction", self.admin.abort_transaction(spec).all()).await;
        self.say("force_terminate_transaction", self.admin.force_terminate_transaction(&ids[0]).result()).await;
        Ok(())
    }

    async fn security(&mut self) -> Result<(), Failure> {
        let pattern = ResourcePattern::new(ResourceType::Topic, self.topic.as_str(), PatternType::Literal)?;
        let entry = AccessControlEntry::new("User:a", "*", AclOperation::Read, AclPermissionType::Allow)?;
        let binding = AclBinding::new(pattern, entry);
        self.say("create_acls", self.admin.create_acls(std::slice::from_ref(&binding)).all()).await;
        let described = self.admin.describe_acls(&AclBindingFilter::any());
        self.say("describe_acls", described.values().clone()).await;
        self.say("delete_acls", self.admin.delete_acls(&[binding.to_filter()]).all()).await;
        let quotas = self.admin.describe_client_quotas(&ClientQuotaFilter::all());
        self.say("describe_client_quotas", quotas.entities().clone()).await;
        let entity = ClientQuotaEntity::new(HashMap::from([("user".to_string(), Some("a".to_string()))]));
        let op = Op::new("producer_byte_rate", Some(1000.0));
        let altered = self.admin.alter_client_quotas(&[ClientQuotaAlteration::new(entity, vec![op])]);
        self.say("alter_client_quotas", altered.all()).await;
        let users = self.admin.describe_user_scram_credentials();
        self.say("describe_user_scram_credentials", users.all()).await;
        let deletion = UserScramCredentialDeletion::new("a", ScramMechanism::ScramSha256);
        self.say("alter_user_scram_credentials", self.admin.alter_user_scram_credentials(&[deletion.into()]).all())
            .await;
        let token = self.admin.create_delegation_token();
        self.say("create_delegation_token", token.delegation_token().clone()).await;
        let renewed = self.admin.renew_delegation_token(b"none");
        self.say("renew_delegation_token", renewed.expiry_timestamp().clone()).await;
        let expired = self.admin.expire_delegation_token(b"none");
        self.say("expire_delegation_token", expired.expiry_timestamp().clone()).await;
        let tokens = self.admin.describe_delegation_token();
        self.say("describe_delegation_token", tokens.delegation_tokens().clone()).await;
        Ok(())
    }
}

pub async fn run(topic: &str, group: &str, settings: Settings) -> Result<(), Failure> {
    let admin = AdminClient::create(AdminClientConfig::new(&settings)?)?;
    let mut asked = Asked { admin, topic: topic.into(), group: group.into(), told: Map::new() };
    asked.topics().await?;
    asked.cluster().await?;
    asked.groups().await?;
    asked.transactions().await?;
    asked.security().await?;
    asked.admin.close().await;
    println!("{}", Value::from(asked.told));
    Ok(())
}
