import java.net.InetAddress;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Optional;
import java.util.function.Supplier;
import org.apache.kafka.common.errors.ThrottlingQuotaExceededException;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.network.Session;
import org.apache.kafka.server.config.ClientQuotaManagerConfig;
import org.apache.kafka.server.quota.ClientQuotaEntity.ConfigEntity;
import org.apache.kafka.server.quota.ClientQuotaManager;
import org.apache.kafka.server.quota.ControllerMutationQuota;
import org.apache.kafka.server.quota.ControllerMutationQuotaManager;
import org.apache.kafka.server.quota.QuotaType;

/** Executes a file of steps with a broker's own quota managers, and prints a line for each step that asks for a result. */
public class QuotaManagers {
    /** Milliseconds, set by the step `at`. */
    static final class SetTime implements Time {
        long now = 0;

        @Override
        public long milliseconds() {
            return now;
        }

        @Override
        public long nanoseconds() {
            return now * 1_000_000;
        }

        @Override
        public void sleep(long ms) {}

        @Override
        public void waitObject(Object object, Supplier<Boolean> condition, long deadline) {}
    }

    static Optional<ConfigEntity> user(String name) {
        return switch (name) {
            case "-" -> Optional.empty();
            case "*" -> Optional.of(ClientQuotaManager.DEFAULT_USER_ENTITY);
            default -> Optional.of(new ClientQuotaManager.UserEntity(name));
        };
    }

    static Optional<ConfigEntity> client(String name) {
        return switch (name) {
            case "-" -> Optional.empty();
            case "*" -> Optional.of(ClientQuotaManager.DEFAULT_USER_CLIENT_ID);
            default -> Optional.of(new ClientQuotaManager.ClientIdEntity(name));
        };
    }

    static Session session(String user) {
        return new Session(new KafkaPrincipal("User", user), InetAddress.getLoopbackAddress());
    }

    public static void main(String[] arguments) throws Exception {
        SetTime time = new SetTime();
        ClientQuotaManager manager = null;
        ControllerMutationQuota operation = null;
        StringBuilder results = new StringBuilder();
        for (String line : Files.readAllLines(Path.of(arguments[0]))) {
            String[] step = line.split(" ");
            switch (step[0]) {
                case "bytes", "mutations" -> {
                    if (manager != null) {
                        manager.initiateShutdown();
                    }
                    ClientQuotaManagerConfig config =
                            new ClientQuotaManagerConfig(Integer.parseInt(step[1]), Integer.parseInt(step[2]));
                    Metrics metrics = new Metrics(new MetricConfig(), new ArrayList<>(), time);
                    manager =
                            step[0].equals("bytes")
                                    ? new ClientQuotaManager(config, metrics, QuotaType.FETCH, time, "")
                                    : new ControllerMutationQuotaManager(config, metrics, time, "", Optional.empty());
                }
                case "at" -> time.now = Long.parseLong(step[1]);
                case "set" -> {
                    Quota quota = Quota.upperBound(Double.parseDouble(step[3]));
                    manager.updateQuota(user(step[1]), client(step[2]), Optional.of(quota));
                }
                case "limit" -> {
                    var tags = manager.getOrCreateQuotaSensors(session(step[1]), step[2]).metricTags();
                    double bound = manager.quota(step[1], step[2]).bound();
                    results.append(bound + " " + tags.get("user") + " " + tags.get("client-id") + "\n");
                }
                case "record" -> {
                    double value = Double.parseDouble(step[3]);
                    results.append(manager.maybeRecordAndGetThrottleTimeMs(session(step[1]), step[2], value, time.now) + "\n");
                }
                case "unrecord" ->
                        manager.unrecordQuotaSensor(session(step[1]), step[2], Double.parseDouble(step[3]), time.now);
                case "strict" ->
                        operation = ((ControllerMutationQuotaManager) manager).newStrictQuotaFor(session(step[1]), step[2]);
                case "permissive" ->
                        operation = ((ControllerMutationQuotaManager) manager).newPermissiveQuotaFor(session(step[1]), step[2]);
                case "mutate" -> {
                    try {
                        operation.record(Double.parseDouble(step[1]));
                        results.append("true\n");
                    } catch (ThrottlingQuotaExceededException refused) {
                        results.append("false\n");
                    }
                }
                case "throttle" -> results.append(operation.throttleTime() + "\n");
                default -> throw new IllegalArgumentException(line);
            }
        }
        System.out.print(results);
        System.exit(0); // each manager has a thread
    }
}
