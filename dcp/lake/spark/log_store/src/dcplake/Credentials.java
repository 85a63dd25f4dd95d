package dcplake;

import java.io.BufferedReader;
import java.io.IOException;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.s3a.CredentialInitializationException;
import software.amazon.awssdk.auth.credentials.AwsBasicCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentials;
import software.amazon.awssdk.auth.credentials.AwsCredentialsProvider;
import software.amazon.awssdk.auth.credentials.AwsSessionCredentials;
import software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider;
import software.amazon.awssdk.profiles.ProfileFileSupplier;

/**
 * The caller of S3: the keys that {@code lake.storage_options} gives, mostly in files; else those of the
 * SDK's usual chain (environment, web identity, profile, role).
 *
 * <p>Whoever renews keys replaces the files, so those of options are read for each request, and those of
 * profiles when they have changed. The driver and each executor read their own machine's.
 */
public final class Credentials implements AwsCredentialsProvider {

    private static final String OPTIONS = "fs.s3a.dcplake.";
    private static final String KEY = "access_key_id";
    private static final String SECRET = "secret_access_key";
    private static final String TOKEN = "session_token";

    private final Configuration configuration;
    private final AwsCredentialsProvider usualChain;
    private AwsCredentials last;

    /** S3A makes it for each connection. */
    public Credentials(URI store, Configuration configuration) {
        this.configuration = configuration;
        usualChain = isGiven(KEY) ? null : usualChain();
    }

    private static AwsCredentialsProvider usualChain() {
        return DefaultCredentialsProvider.builder().profileFile(ProfileFileSupplier.defaultSupplier()).build();
    }

    @Override
    public synchronized AwsCredentials resolveCredentials() {
        if (usualChain != null) {
            return usualChain.resolveCredentials();
        }
        try {
            last = given();
        } catch (CredentialInitializationException failure) {
            if (last == null) { // else the file is being replaced
                throw failure;
            }
        }
        return last;
    }

    private AwsCredentials given() {
        String key = option(KEY);
        String secret = option(SECRET);
        return isGiven(TOKEN)
                ? AwsSessionCredentials.create(key, secret, option(TOKEN))
                : AwsBasicCredentials.create(key, secret);
    }

    private boolean isGiven(String name) {
        return configuration.get(OPTIONS + name) != null || configuration.get(fileOption(name)) != null;
    }

    private static String fileOption(String name) {
        return OPTIONS + name + "_file";
    }

    private String option(String name) {
        String file = configuration.get(fileOption(name));
        if (file == null) {
            return configuration.get(OPTIONS + name);
        }
        String line;
        try (BufferedReader lines = Files.newBufferedReader(expanded(file))) {
            line = lines.readLine();
        } catch (IOException failure) {
            throw failure(name, "cannot read the file that it names", failure);
        }
        if (line == null || line.isEmpty()) {
            throw failure(name, "the first line of the file is empty", null);
        }
        return line;
    }

    private static Path expanded(String file) {
        String home = System.getenv().getOrDefault("HOME", System.getProperty("user.home"));
        return file.startsWith("~/") ? Path.of(home, file.substring(2)) : Path.of(file);
    }

    private static CredentialInitializationException failure(String name, String found, IOException cause) {
        return new CredentialInitializationException("lake.storage_options." + name + "_file: " + found, cause);
    }
}
