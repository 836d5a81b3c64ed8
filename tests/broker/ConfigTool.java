import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import org.apache.kafka.common.utils.Exit;

/**
 * Runs kafka-configs repeatedly in one JVM, because each JVM takes seconds to start.
 *
 * <p>Each line of stdin is a run: its arguments, separated by tabs. Each line of stdout is its result: the exit code, and the tool's
 * stdout and stderr in Base64.
 */
public class ConfigTool {
    /** Thrown instead of ending the process. */
    static final class Exited extends RuntimeException {
        final int code;

        Exited(int code) {
            super("exit " + code);
            this.code = code;
        }
    }

    public static void main(String[] unused) throws Exception {
        PrintStream answers = System.out;
        PrintStream errors = System.err;
        Exit.setExitProcedure((code, message) -> {
            throw new Exited(code);
        });
        BufferedReader runs = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = runs.readLine(); line != null; line = runs.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            int code = run(line.split("\t"));
            System.setOut(answers);
            System.setErr(errors);
            Base64.Encoder base64 = Base64.getEncoder();
            answers.println(code + " [" + base64.encodeToString(out.toByteArray()) + "] ["
                + base64.encodeToString(err.toByteArray()) + "]");
            answers.flush();
        }
    }

    private static int run(String[] arguments) {
        // Scala's console keeps the streams of its first use, unless they are replaced explicitly.
        int[] code = new int[1];
        scala.Console.withOut(System.out, () -> scala.Console.withErr(System.err, () -> {
            try {
                kafka.admin.ConfigCommand.main(arguments);
            } catch (Exited exited) {
                code[0] = exited.code;
            }
            return null;
        }));
        return code[0];
    }
}
