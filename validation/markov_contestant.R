# bam of mgcv as a contestant of markov_peers.py: Rscript validation/markov_contestant.R FOLDER KIND RANK
# reads train.csv and test.csv in the folder and writes moments.csv of the linear predictor there; prints seconds.
suppressMessages(library(mgcv))
arguments <- commandArgs(TRUE)
train <- read.csv(file.path(arguments[1], "train.csv"))
test <- read.csv(file.path(arguments[1], "test.csv"))
family <- if (arguments[2] == "Gaussian") gaussian() else binomial()
rank <- as.integer(arguments[3])
seconds <- system.time({
  model <- bam(y ~ s(x, bs = "cr", k = rank), data = train, family = family, method = "fREML", discrete = 5L * rank)
  predicted <- predict(model, test, se.fit = TRUE, discrete = FALSE)
})
write.csv(
  data.frame(mean = as.vector(predicted$fit), variance = as.vector(predicted$se.fit)^2),
  file.path(arguments[1], "moments.csv"), row.names = FALSE
)
cat(sum(seconds[1:2]), summary(model)$scale, R.version$major, R.version$minor, as.character(packageVersion("mgcv")), "\n")
