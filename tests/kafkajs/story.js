// A topic is made, records are written with keys, and a group of two members reads them all. What was read is written to
// standard output as JSON; settings come as JSON from the environment.
const fs = require('fs')
const { CompressionTypes, Kafka, logLevel } = require('kafkajs')

const { brokers, ca, sasl, topic, partitions, records, refused } = JSON.parse(process.env.STORY)

const kafka = new Kafka({
  brokers,
  sasl,
  clientId: 'kafkajs',
  logLevel: logLevel.NOTHING,
  retry: { retries: refused ? 0 : 10 },
  ssl: ca ? { ca: [fs.readFileSync(ca)] } : false,
})

async function read(total) {
  const found = []
  const members = [1, 2].map(() => kafka.consumer({ groupId: `${topic}-group` }))
  await Promise.all(members.map((member) => member.connect()))
  await Promise.all(members.map((member) => member.subscribe({ topics: [topic], fromBeginning: true })))
  await new Promise((resolve, reject) => {
    for (const member of members) {
      const eachMessage = async ({ partition, message }) => {
        found.push([partition, message.key.toString(), message.value.toString()])
        if (found.length === total) resolve()
      }
      member.run({ eachMessage }).catch(reject)
    }
  })
  await Promise.all(members.map((member) => member.disconnect()))
  return found
}

async function story() {
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: partitions }] })
  await admin.disconnect()
  const producer = kafka.producer({ idempotent: true })
  await producer.connect()
  for (const compression of [CompressionTypes.None, CompressionTypes.GZIP]) {
    const messages = [...Array(records).keys()].map((i) => ({ key: `${compression} ${i}`, value: `value ${i}` }))
    await producer.send({ topic, compression, acks: -1, messages })
  }
  await producer.disconnect()
  return read(2 * records)
}

story().then(
  (found) => console.log(JSON.stringify({ found })),
  (error) => console.log(JSON.stringify({ error: error.name, type: error.type || null, text: error.message })),
)
