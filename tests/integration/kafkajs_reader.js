// Reads a partition with kafkajs and prints "offset key" for each record: the folder that it is installed in, servers,
// topic, first offset, isolation level, how many records there are to come.
const [folder, servers, topic, from, isolation, count] = process.argv.slice(2);
const { Kafka, logLevel } = require(`${folder}/node_modules/kafkajs`);

(async () => {
  const kafka = new Kafka({ brokers: [servers], logLevel: logLevel.ERROR });
  const readUncommitted = isolation !== "read_committed";
  const consumer = kafka.consumer({ groupId: `kafkajs-${topic}-${from}-${isolation}`, readUncommitted });
  let left = Number(count);
  await consumer.connect();
  await consumer.subscribe({ topics: [topic], fromBeginning: true });
  await new Promise((done) => {
    consumer.run({
      autoCommit: false,
      eachMessage: async ({ message }) => {
        if (left > 0 && BigInt(message.offset) >= BigInt(from)) console.log(message.offset, message.key.toString());
        if (BigInt(message.offset) >= BigInt(from) && --left === 0) done();
      },
    });
    consumer.seek({ topic, partition: 0, offset: from });
  });
  await consumer.disconnect();
})();
