import java.util.Properties;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** Sends records that begin with their number, in turn to each topic's two partitions. Prints failures and retries.
 *  Arguments: bootstrap servers, topics with commas, records, records per second (0: at full speed), bytes of a record,
 *  producer settings as key=value. */
public class NumberedProducer {
    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", arguments[0]);
        settings.put("key.serializer", ByteArraySerializer.class.getName());
        settings.put("value.serializer", ByteArraySerializer.class.getName());
        for (int index = 5; index < arguments.length; index++) {
            String[] setting = arguments[index].split("=", 2);
            settings.put(setting[0], setting[1]);
        }
        String[] topics = arguments[1].split(",");
        int count = Integer.parseInt(arguments[2]);
        double pace = Double.parseDouble(arguments[3]);
        int size = Integer.parseInt(arguments[4]);
        boolean transactional = settings.containsKey("transactional.id");
        AtomicInteger failed = new AtomicInteger();
        AtomicReference<Exception> first = new AtomicReference<>();
        double retried = 0;
        long begun = System.nanoTime();
        try (KafkaProducer<byte[], byte[]> producer = new KafkaProducer<>(settings)) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            for (int number = 0; number < count; number++) {
                long early = pace == 0 ? 0 : begun + (long) (number / pace * 1e9) - System.nanoTime();
                if (early > 0) {
                    Thread.sleep(early / 1_000_000, (int) (early % 1_000_000));
                }
                byte[] value = new byte[size];
                System.arraycopy(String.format("%08d", number).getBytes(), 0, value, 0, 8);
                int partition = number / topics.length % 2;
                producer.send(new ProducerRecord<>(topics[number % topics.length], partition, null, value), (metadata, error) -> {
                    if (error != null) {
                        failed.incrementAndGet();
                        first.compareAndSet(null, error);
                    }
                });
            }
            producer.flush();
            if (transactional) {
                producer.commitTransaction();
            }
            retried = producer.metrics().entrySet().stream()
                .filter(metric -> metric.getKey().name().equals("record-retry-total"))
                .filter(metric -> metric.getKey().group().equals("producer-metrics"))
                .mapToDouble(metric -> (Double) metric.getValue().metricValue()).sum();
        }
        System.out.println("failed " + failed + (first.get() == null ? "" : " " + first.get()));
        System.out.println("retried " + (long) retried);
    }
}
